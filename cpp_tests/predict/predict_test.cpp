// Predictions: a call that can be reckoned by hand, what holds for any call, and links.

#include "tileoverlap/predict/predict.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "support/messages.hpp"
#include "support/random.hpp"
#include "support/random_routing.hpp"
#include "tileoverlap/core/error.hpp"
#include "tileoverlap/plan/plan.hpp"
#include "tileoverlap/predict/choose_split.hpp"

namespace tileoverlap {
namespace {

using testing::message_of;
using testing::Random;
using testing::Says;

// 4 SMs, each of which computes a 128 x 128 tile of depth 1000 (32.768 MFLOP) in 10 us and ships 1 GB/s with one lane.
GpuRates small_gpu() {
  return {.device = "small",
          .capability = 90,
          .sms = 4,
          .matmul_tflops = 4 * 2 * 128 * 128 * 1e3 / 10 * 1e-6,
          .memory_gbs = 1e9,
          .ship_gbs = 1,
          .lane_gbs = 1,
          .lanes = 1};
}

PredictQuery small_query(int32_t world, int32_t experts) {
  return {.placement = Placement::even(world, experts),
          .k = 1000,
          .n = 128,
          .gpu = small_gpu(),
          .link = {.gbs = 0, .latency_us = 0, .network_gbs = 0, .network_latency_us = 0}};
}

TEST(Predict, ACallByHand) {
  // Two ranks, an expert each; rank 0 computes 256 rows of rank 1 and 256 of its own: bands 0 and 1 are sent, one tile
  // each. On 3 SMs tiles 0 to 2 are done at 10 us and tile 3 at 20; alone on 4 SMs all at 10.
  const PredictQuery query = small_query(2, 2);
  const RouteCounts counts(query.placement, {256, 0, 256, 0});
  const std::array<int32_t, 1> one = {1};
  const Prediction found = predict(query, counts, one)[0];
  // 256 rows of 256 bytes by one lane of 1,000 bytes a us: 65.536 us.
  constexpr double kCopy = 65.536;
  EXPECT_NEAR(found.gemm_us, 10, 1e-9);
  EXPECT_NEAR(found.copy_us, kCopy, 1e-9);
  EXPECT_NEAR(found.serial_us, 10 + kCopy, 1e-9);
  EXPECT_NEAR(found.overlapped_us, 10 + kCopy, 1e-9);
  EXPECT_NEAR(found.behind_us, 10 + kCopy - 20, 1e-9);
  EXPECT_NEAR(found.bound(), (10 + kCopy) / kCopy, 1e-9);
  ASSERT_EQ(found.ranks.size(), 2u);
  EXPECT_EQ(found.ranks[0].shipped_bytes, 65'536);
  EXPECT_EQ(found.ranks[0].landed_us, 0);
  EXPECT_EQ(found.ranks[1].shipped_bytes, 0);
  EXPECT_NEAR(found.ranks[1].landed_us, 10 + kCopy, 1e-9);
}

TEST(Predict, TheDrawnRankIsThePredictedOne) {
  const PredictQuery query = small_query(3, 6);
  Random random(5);
  const RouteCounts counts = testing::random_counts(random, query.placement, 900);
  const std::array<int32_t, 1> two = {2};
  const Prediction found = predict(query, counts, two)[0];
  for (int32_t rank = 0; rank < 3; ++rank) {
    const PredictedRank drawn = predict_rank(query, counts, 2, rank);
    const RankPrediction& same = found.ranks[static_cast<size_t>(rank)];
    int64_t bytes = 0;
    double sent = 0;
    for (const PredictedPiece& piece : drawn.pieces) {
      bytes += piece.bytes;
      sent = std::max(sent, piece.end_us);
      EXPECT_LE(piece.ready_us, piece.begin_us);
      EXPECT_LT(piece.begin_us, piece.end_us);
      EXPECT_NE(piece.peer, rank);
    }
    EXPECT_EQ(bytes, same.shipped_bytes);
    EXPECT_DOUBLE_EQ(sent, same.sent_us);
    ASSERT_FALSE(drawn.band_us.empty());
    EXPECT_NEAR(*std::max_element(drawn.band_us.begin(), drawn.band_us.end()), same.gemm_end_us, 1e-9);
  }
}

// Random routings, ranks without experts or tokens, both layouts: what must hold whatever the rates.
TEST(Predict, HoldsForAnyCall) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    Random random(seed);
    PredictQuery query = small_query(1, 1);
    query.placement = testing::random_placement(random, 6);
    query.plan.layout = random.between(0, 1) == 0 ? Layout::kCompact : Layout::kOwnerAligned;
    query.plan.bands_per_segment = random.between32(1, 3);
    query.n = 8 * random.between(1, 80);
    query.gpu.gemm_slowdown = 0.05;
    query.gpu.ship_share = 0.7;
    const RouteCounts counts = testing::random_counts(random, query.placement, random.between32(0, 300));
    const std::array<int32_t, 3> splits = {1, 2, 3};
    const std::vector<Prediction> found = predict(query, counts, splits);
    ASSERT_EQ(found.size(), splits.size());
    for (const Prediction& split : found) {
      int64_t expected = 0, shipped = 0;
      for (int32_t rank = 0; rank < query.placement.world(); ++rank) {
        const Plan plan = make_plan(query.placement, rank, counts, query.n, query.plan);
        expected += std::accumulate(plan->returned_rows.begin(), plan->returned_rows.end(), int64_t{0}) * query.n * 2;
        const RankPrediction& here = split.ranks[static_cast<size_t>(rank)];
        shipped += here.shipped_bytes;
        EXPECT_LE(here.gemm_us, here.gemm_end_us * (1 + 1e-9));
        EXPECT_LE(here.sent_us, split.overlapped_us * (1 + 1e-9));
      }
      EXPECT_EQ(shipped, expected);
      EXPECT_GE(split.overlapped_us * (1 + 1e-9), std::max(split.gemm_us, split.copy_us));
      EXPECT_GE(split.bound(), 1);
      EXPECT_LE(split.bound(), 2 + 1e-9);
      EXPECT_LE(split.reached(), 1 + 1e-9);
      EXPECT_GE(split.serial_us * (1 + 1e-9), std::max(split.gemm_us, split.copy_us));
    }
    EXPECT_GE(found[0].copy_us * (1 + 1e-9), found[1].copy_us);
    EXPECT_GE(found[1].copy_us * (1 + 1e-9), found[2].copy_us);
    EXPECT_DOUBLE_EQ(found[0].gemm_us, found[2].gemm_us);
  }
}

TEST(Predict, OfSomeRanksTheirOwnTimes) {
  const PredictQuery query = small_query(4, 8);
  const RouteCounts counts = even_counts(query.placement, 512);
  const std::array<int32_t, 1> split = {1}, rank = {2};
  const Prediction all = predict(query, counts, split)[0], one = predict(query, counts, split, rank)[0];
  ASSERT_EQ(one.ranks.size(), 1u);
  EXPECT_EQ(one.ranks[0].rank, 2);
  EXPECT_DOUBLE_EQ(one.ranks[0].sent_us, all.ranks[2].sent_us);
  EXPECT_DOUBLE_EQ(one.overlapped_us, all.overlapped_us);  // all ranks are alike
}

TEST(Predict, AnOwnerTakesInOneRowAfterTheOther) {
  // All tokens are rank 0's: three ranks send to it at once, faster together than it receives.
  PredictQuery query = small_query(4, 4);
  query.link.gbs = 1.5;
  const RouteCounts counts(query.placement, {0, 512, 512, 512, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0});
  const std::array<int32_t, 1> split = {3};
  const Prediction found = predict(query, counts, split)[0];
  const double bytes = 3 * 512 * 256;
  EXPECT_GE(found.copy_us, bytes / 1500);
  // Each by itself: three pieces of 128 rows share the link, and the fourth has a lane's rate.
  EXPECT_NEAR(found.ranks[1].copy_us, 3 * 128 * 256 / 1500.0 + 128 * 256 / 1000.0, 1e-6);
  EXPECT_GE(found.overlapped_us, bytes / 1500);
}

TEST(Predict, BetweenDomainsRowsTakeTheNetwork) {
  const std::array<int32_t, 1> split = {2};
  const auto copy_us = [&](int32_t world, int32_t domain) {
    PredictQuery query = small_query(world, world);
    query.link = {.gbs = 1e3, .latency_us = 0, .domain = domain, .network_gbs = 0.5, .network_latency_us = 7};
    return predict(query, even_counts(query.placement, 256 * world), split)[0].copy_us;
  };
  // 256 rows for the other rank: 65,536 bytes at 500 a us through the network, at 2,000 by two lanes.
  EXPECT_NEAR(copy_us(2, 1), 65'536 / 500.0 + 7, 1e-6);
  EXPECT_NEAR(copy_us(2, 2), 65'536 / 2000.0, 1e-6);
  EXPECT_DOUBLE_EQ(copy_us(2, 0), copy_us(2, 2));
  // Of four ranks, two of each domain send to the same owner first: it takes in what both have sent, and only then
  // comes the other owner's turn.
  EXPECT_NEAR(copy_us(4, 2), 3 * 65'536 / 500.0 + 7, 1e-6);
}

TEST(Predict, RefusesWhatCannotBe) {
  const RouteCounts counts(Placement::even(2, 2), {1, 1, 1, 1});
  const auto refusal = [&](auto change, int32_t comm_sms = 1) {
    PredictQuery query = small_query(2, 2);
    change(query);
    const std::array<int32_t, 1> split = {comm_sms};
    return message_of<InvalidArgument>([&] { predict(query, counts, split); });
  };
  EXPECT_THAT(refusal([](PredictQuery& q) { q.k = 0; }), Says("k > 0", "got 0"));
  EXPECT_THAT(refusal([](PredictQuery& q) { q.n = -1; }), Says("n must be positive", "-1"));
  EXPECT_THAT(refusal([](PredictQuery& q) { q.gpu.lane_gbs = 0; }), Says("lane_gbs > 0"));
  EXPECT_THAT(refusal([](PredictQuery& q) { q.gpu.ship_gbs = std::nan(""); }), Says("ship_gbs > 0"));
  EXPECT_THAT(refusal([](PredictQuery& q) { q.sms = 5; }), Says("sms = 5", "4"));
  EXPECT_THAT(refusal([](PredictQuery&) {}, 0), Says("1..3", "got 0"));
  EXPECT_THAT(refusal([](PredictQuery&) {}, 4), Says("1..3", "got 4"));
  EXPECT_THAT(refusal([](PredictQuery& q) { q.placement = Placement::even(3, 2); }), Says("[2, 2]", "[3, 2]"));
}

}  // namespace
}  // namespace tileoverlap
