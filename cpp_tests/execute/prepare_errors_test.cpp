// What prepare refuses: options that make no sense, and options on which the ranks disagree.

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "support/messages.hpp"
#include "tileoverlap/core/error.hpp"
#include "tileoverlap/execute/cpu_executor.hpp"
#include "tileoverlap/transport/in_process.hpp"

namespace tileoverlap {
namespace {

using testing::message_of;
using testing::Says;

SessionOptions good_session() {
  return {.placement = Placement::even(2, 4),
          .k = 16,
          .n = 32,
          .top_k = 2,
          .max_tokens = 8,
          .plan = {.tile_m = 4, .tile_n = 8}};
}
LayerOptions good_layer() {
  return {.placement = Placement::even(2, 4),
          .hidden = 32,
          .inner = 16,
          .top_k = 2,
          .max_tokens = 8,
          .plan = {.tile_m = 4, .tile_n = 8}};
}

template <class ErrorType = InvalidArgument>
std::string refusal(const std::function<void(SessionOptions&)>& change) {
  const auto executor = make_cpu_executor(make_in_process_world(2)[0]);
  SessionOptions options = good_session();
  change(options);
  return message_of<ErrorType>([&] { executor->prepare(options); });
}

template <class ErrorType = InvalidArgument>
std::string layer_refusal(const std::function<void(LayerOptions&)>& change) {
  const auto executor = make_cpu_executor(make_in_process_world(2)[0]);
  LayerOptions options = good_layer();
  change(options);
  return message_of<ErrorType>([&] { executor->prepare_layer(options); });
}

TEST(PrepareRefuses, RowsThatAreNoMultipleOf16Bytes) {
  EXPECT_THAT(refusal([](auto& o) { o.n = 70; }), Says("n = 70", "multiple of 8", "bfloat16", "16 bytes"));
  EXPECT_THAT(refusal([](auto& o) { o.k = 1401; }), Says("k = 1401", "multiple of 8", "bfloat16"));
  EXPECT_THAT(refusal([](auto& o) { o.dtype = DType::kFloat32, o.n = 70; }),
              Says("n = 70", "multiple of 4", "float32"));
  EXPECT_THAT(refusal([](auto& o) { o.dtype = DType::kFloat16, o.k = 4; }), Says("k = 4", "multiple of 8", "float16"));
  EXPECT_THAT(layer_refusal([](auto& o) { o.hidden = 36; }), Says("hidden = 36", "multiple of 8", "bfloat16"));
  EXPECT_THAT(layer_refusal([](auto& o) { o.inner = 12; }), Says("inner = 12", "multiple of 8", "bfloat16"));
}

TEST(PrepareRefuses, WidthsThatAreNotPositive) {
  EXPECT_THAT(refusal([](auto& o) { o.k = 0; }), Says("k = 0", "positive"));
  EXPECT_THAT(refusal([](auto& o) { o.n = -8; }), Says("n = -8", "positive"));
  EXPECT_THAT(layer_refusal([](auto& o) { o.hidden = 0; }), Says("hidden = 0", "positive"));
  EXPECT_THAT(layer_refusal([](auto& o) { o.inner = -16; }), Says("inner = -16", "positive"));
}

TEST(PrepareRefuses, WidthsAndTilesThatNoMachineHolds) {
  constexpr int64_t kHuge = int64_t{1} << 42;
  EXPECT_THAT(refusal([](auto& o) { o.n = kHuge; }), Says("n = 4398046511104", "below 2^31"));
  EXPECT_THAT(refusal([](auto& o) { o.k = kHuge; }), Says("k = 4398046511104", "below 2^31"));
  EXPECT_THAT(layer_refusal([](auto& o) { o.hidden = kHuge; }), Says("hidden = 4398046511104", "below 2^31"));
  EXPECT_THAT(layer_refusal([](auto& o) { o.inner = kHuge; }), Says("inner = 4398046511104", "below 2^31"));
  // max_tokens of 0: no rows, but the producer threads' buffers grow with the tile and the depth.
  const auto tall = [](auto& o) { o.max_tokens = 0, o.plan.tile_m = 2147483647, o.plan.tile_n = 2147483647; };
  EXPECT_THAT(refusal([&](auto& o) { tall(o), o.k = 2147483640; }),
              Says("tile_m = 2147483647", "depth of 2147483640", "bytes", "machine"));
  EXPECT_THAT(layer_refusal([&](auto& o) { tall(o), o.hidden = 2147483640; }),
              Says("tile_m = 2147483647", "depth of 2147483640", "bytes", "machine"));
}

TEST(Prepare, TakesATileWiderThanTheRowsWithoutPayingForIt) {
  SessionOptions options = good_session();
  options.plan.tile_n = 2147483647;
  EXPECT_EQ(make_cpu_executor(make_in_process_world(2)[0])->prepare(options)->rank(), 0);
}

TEST(PrepareRefuses, APlacementForAnotherNumberOfRanks) {
  EXPECT_THAT(refusal([](auto& o) { o.placement = Placement::even(3, 6); }), Says("placement", "3", "2"));
  EXPECT_THAT(layer_refusal([](auto& o) { o.placement = Placement::even(1, 6); }), Says("placement", "1", "2"));
}

TEST(PrepareRefuses, DTypesThatAreNoRows) {
  EXPECT_THAT(refusal<DTypeError>([](auto& o) { o.dtype = DType::kInt32; }), Says("dtype", "int32", "bfloat16"));
  EXPECT_THAT(layer_refusal<DTypeError>([](auto& o) { o.dtype = DType::kInt64; }), Says("dtype", "int64", "float16"));
}

TEST(PrepareRefuses, CountsThatAreNotPositive) {
  EXPECT_THAT(refusal([](auto& o) { o.top_k = 0; }), Says("top_k", "0"));
  EXPECT_THAT(refusal([](auto& o) { o.max_tokens = -1; }), Says("max_tokens", "-1"));
  EXPECT_THAT(refusal([](auto& o) { o.plan.tile_m = 0; }), Says("tile_m", "0"));
  EXPECT_THAT(refusal([](auto& o) { o.plan.tile_n = -4; }), Says("tile_n", "-4"));
  EXPECT_THAT(refusal([](auto& o) { o.plan.bands_per_segment = 0; }), Says("bands_per_segment", "0"));
  EXPECT_THAT(refusal([](auto& o) { o.plan.group = 0; }), Says("group", "0"));
  EXPECT_THAT(layer_refusal([](auto& o) { o.top_k = -2; }), Says("top_k", "-2"));
  EXPECT_THAT(layer_refusal([](auto& o) { o.plan.group = -1; }), Says("group", "-1"));
}

TEST(PrepareRefuses, NegativeLimits) {
  EXPECT_THAT(refusal([](auto& o) { o.timeout_ns = -5; }), Says("timeouts", "-5"));
  EXPECT_THAT(refusal([](auto& o) { o.warmup_timeout_ns = -7; }), Says("timeouts", "-7"));
}

TEST(PrepareRefuses, MoreCopiesThanAreCounted) {
  EXPECT_THAT(refusal([](auto& o) { o.max_tokens = int64_t{1} << 30; }),
              Says("max_tokens", "top_k", "1073741824", "2^31"));
}

TEST(PrepareRefuses, AnUnknownExpertKindByName) {
  for (const ExpertKind kind : {ExpertKind::kSingle, ExpertKind::kGelu, ExpertKind::kSiluGate}) {
    EXPECT_EQ(parse_expert_kind(name(kind)), kind);
  }
  EXPECT_THAT(message_of<InvalidArgument>([] { parse_expert_kind("relu"); }),
              Says("relu", "single", "gelu", "silu_gate"));
}

TEST(PrepareAccepts, SizesWithoutAnyAlignmentButThatOfRows) {
  SessionOptions options = good_session();
  options.max_tokens = 673;
  options.top_k = 3;
  options.placement = Placement::even(2, 7);
  options.plan = {.tile_m = 128, .tile_n = 96, .bands_per_segment = 2};
  const auto session = make_cpu_executor(make_in_process_world(2)[0])->prepare(options);
  EXPECT_EQ(session->options().max_tokens, 673);
  EXPECT_EQ(session->sizes().staging_bytes, 673 * 3 * 32 * 2);
  EXPECT_EQ(session->sizes().output_bytes % (128 * 32 * 2), 0);  // rounded up to whole bands by the library
  EXPECT_EQ(session->sizes().input_bytes, 0);                    // the caller's
}

// Rank 0 prepares as it should, rank 1 otherwise.
template <class Options, class Prepare>
std::string disagreement(const Options& good, const std::function<void(Options&)>& change, Prepare prepare) {
  const auto transports = make_in_process_world(2);
  const auto kept = prepare(*make_cpu_executor(transports[0]), good);
  Options options = good;
  change(options);
  return message_of<InvalidArgument>([&] { prepare(*make_cpu_executor(transports[1]), options); });
}
std::string session_disagreement(const std::function<void(SessionOptions&)>& change) {
  return disagreement<SessionOptions>(good_session(), change,
                                      [](Executor& e, const SessionOptions& o) { return e.prepare(o); });
}
std::string layer_disagreement(const std::function<void(LayerOptions&)>& change) {
  return disagreement<LayerOptions>(good_layer(), change,
                                    [](Executor& e, const LayerOptions& o) { return e.prepare_layer(o); });
}

TEST(PrepareRefuses, SessionOptionsOnWhichRanksDisagree) {
  EXPECT_THAT(session_disagreement([](auto& o) { o.k = 24; }), Says("rank 0", "rank 1", "k=16", "k=24"));
  EXPECT_THAT(session_disagreement([](auto& o) { o.n = 40; }), Says("rank 0", "rank 1", "n=32", "n=40"));
  EXPECT_THAT(session_disagreement([](auto& o) { o.top_k = 3; }), Says("rank 0", "rank 1", "top_k=2", "top_k=3"));
  EXPECT_THAT(session_disagreement([](auto& o) { o.max_tokens = 9; }),
              Says("rank 0", "rank 1", "max_tokens=8", "max_tokens=9"));
  EXPECT_THAT(session_disagreement([](auto& o) { o.dtype = DType::kFloat16; }),
              Says("rank 0", "rank 1", "bfloat16", "float16"));
  EXPECT_THAT(session_disagreement([](auto& o) { o.plan.tile_m = 5; }),
              Says("rank 0", "rank 1", "tile_m=4", "tile_m=5"));
  EXPECT_THAT(session_disagreement([](auto& o) { o.plan.layout = Layout::kOwnerAligned; }),
              Says("rank 0", "rank 1", "compact", "owner_aligned"));
  EXPECT_THAT(session_disagreement([](auto& o) {
                o.placement = Placement::from_begins({0, 1, 4});
              }),
              Says("rank 0", "rank 1", "[0,2,4]", "[0,1,4]"));
}

TEST(PrepareRefuses, LayerOptionsOnWhichRanksDisagree) {
  EXPECT_THAT(layer_disagreement([](auto& o) { o.hidden = 64; }), Says("rank 0", "rank 1", "hidden=32", "hidden=64"));
  EXPECT_THAT(layer_disagreement([](auto& o) { o.inner = 32; }), Says("rank 0", "rank 1", "inner=16", "inner=32"));
  EXPECT_THAT(layer_disagreement([](auto& o) { o.expert = ExpertKind::kGelu; }),
              Says("rank 0", "rank 1", "silu_gate", "gelu"));
}

TEST(PrepareRefuses, FirstEpochsOnWhichRanksDisagree) {
  const auto transports = make_in_process_world(2);
  const auto kept = make_cpu_executor(transports[0])->prepare(good_session());
  const auto other = make_cpu_executor(transports[1], {.faults = {.first_epoch = 5}});
  EXPECT_THAT(message_of<InvalidArgument>([&] { other->prepare(good_session()); }),
              Says("rank 0", "rank 1", "first_epoch=0", "first_epoch=5"));
}

TEST(PrepareRefuses, ASessionWhereTheOtherRankPreparesALayer) {
  const auto transports = make_in_process_world(2);
  const auto kept = make_cpu_executor(transports[0])->prepare(good_session());
  const auto other = make_cpu_executor(transports[1]);
  EXPECT_THAT(message_of<InvalidArgument>([&] { other->prepare_layer(good_layer()); }),
              Says("rank 0", "rank 1", "session", "layer"));
}

TEST(PrepareAccepts, TheRightOptionsAfterRefusedOnes) {
  const auto transports = make_in_process_world(2);
  const auto first = make_cpu_executor(transports[0])->prepare(good_session());
  const auto executor = make_cpu_executor(transports[1]);
  SessionOptions wrong = good_session();
  wrong.n = 40;
  message_of<InvalidArgument>([&] { executor->prepare(wrong); });
  EXPECT_EQ(executor->prepare(good_session())->rank(), 1);
}

TEST(PrepareAccepts, SegmentsThatDifferBetweenRanks) {
  const auto transports = make_in_process_world(2);
  const auto first = make_cpu_executor(transports[0])->prepare(good_session());
  SessionOptions other = good_session();
  other.plan.bands_per_segment = 3;
  other.plan.group = 2;
  EXPECT_EQ(make_cpu_executor(transports[1])->prepare(other)->options().plan.bands_per_segment, 3);
}

TEST(CpuExecutorRefuses, ThreadsAndDelaysThatCannotBe) {
  const auto transport = make_in_process_world(1)[0];
  const auto refused = [&](const CpuOptions& options) {
    return message_of<InvalidArgument>([&] { make_cpu_executor(transport, options); });
  };
  EXPECT_THAT(refused({.producer_threads = 0}), Says("producer_threads", "0"));
  EXPECT_THAT(refused({.consumer_threads = -1}), Says("consumer_threads", "-1"));
  EXPECT_THAT(refused({.producer_threads = 100'000}), Says("producer_threads", "100000"));
  EXPECT_THAT(refused({.faults = {.max_delay_us = -3}}), Says("max_delay_us", "-3"));
  EXPECT_THAT(message_of<InvalidArgument>([] { make_cpu_executor(nullptr); }), Says("transport"));
}

TEST(Texts, SayWhatWasPrepared) {
  const auto transports = make_in_process_world(2);
  const auto executor = make_cpu_executor(transports[1], {.producer_threads = 3, .consumer_threads = 2});
  EXPECT_THAT(executor->repr(), Says("rank=1", "producer_threads=3", "consumer_threads=2"));
  EXPECT_THAT(executor->prepare(good_session())->repr(),
              Says("rank=1", "bfloat16", "k=16", "n=32", "top_k=2", "max_tokens=8", "tile=(4, 8)", "epoch=0"));
  EXPECT_THAT(executor->prepare_layer(good_layer())->repr(),
              Says("rank=1", "bfloat16", "silu_gate", "hidden=32", "inner=16", "top_k=2", "max_tokens=8"));
}

}  // namespace
}  // namespace tileoverlap
