// What the CUDA executor refuses: each time the message is read, nothing was written, and the session stays usable.

#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "support/compare.hpp"
#include "support/gpu_checks.hpp"
#include "support/gpu_world.hpp"
#include "support/messages.hpp"
#include "tileoverlap/transport/in_process.hpp"

namespace tileoverlap {
namespace {

using testing::DeviceTensor;
using testing::GpuCall;
using testing::GpuSessionWorld;
using testing::GpuSetup;
using testing::HostTensor;
using testing::make_scenario;
using testing::message_of;
using testing::poisoned_gpu;
using testing::Random;
using testing::same_bits;
using testing::Says;
using testing::Scenario;

SessionOptions good_session() {
  return {.placement = Placement::even(2, 4), .k = 16, .n = 32, .top_k = 2, .max_tokens = 8};
}
LayerOptions good_layer() {
  return {.placement = Placement::even(2, 4), .hidden = 32, .inner = 16, .top_k = 2, .max_tokens = 8};
}

class GpuPrepareRefuses : public ::testing::Test {
 protected:
  void SetUp() override { TILEOVERLAP_NEEDS_GPU(); }

  template <class ErrorType = InvalidArgument>
  static std::string refusal(const SessionOptions& options, const CudaOptions& cuda = {}) {
    return message_of<ErrorType>([&] { make_cuda_executor(make_device_world({0, 0})[0], cuda)->prepare(options); });
  }
  template <class ErrorType = InvalidArgument>
  static std::string layer_refusal(const LayerOptions& options) {
    return message_of<ErrorType>([&] { make_cuda_executor(make_device_world({0, 0})[0])->prepare_layer(options); });
  }
  static int32_t device_sms() { return cuda_devices().at(0).sms; }
};

TEST_F(GpuPrepareRefuses, AMissingTransport) {
  EXPECT_THAT(message_of<InvalidArgument>([] { make_cuda_executor(nullptr); }), Says("transport", "missing"));
}

TEST_F(GpuPrepareRefuses, ATransportOfTheCpu) {
  EXPECT_THAT(message_of<InvalidArgument>([] { make_cuda_executor(make_in_process_world(1)[0]); }),
              Says("transport", "GPU"));
}

TEST_F(GpuPrepareRefuses, ATileWithoutAKernelAndListsThoseThereAre) {
  SessionOptions options = good_session();
  options.plan = {.tile_m = 96, .tile_n = 128};
  const std::string said = refusal(options);
  EXPECT_THAT(said, Says("96x128", "bfloat16", "128x128"));
  for (const auto& tile : testing::gpu_tiles()) EXPECT_THAT(said, Says(tile.text()));
  LayerOptions layer = good_layer();
  layer.plan = {.tile_m = 128, .tile_n = 48};
  EXPECT_THAT(layer_refusal(layer), Says("128x48", "128x128"));
}

TEST_F(GpuPrepareRefuses, RowsOfFloat32) {
  SessionOptions options = good_session();
  options.dtype = DType::kFloat32;
  EXPECT_THAT(refusal<DTypeError>(options), Says("float32", "bfloat16", "float16"));
  LayerOptions layer = good_layer();
  layer.dtype = DType::kFloat32;
  EXPECT_THAT(layer_refusal<DTypeError>(layer), Says("float32", "bfloat16", "float16"));
}

// D6.4: a number that does not fit the device is refused with the limit. 0 is the default here, not an error.
TEST_F(GpuPrepareRefuses, MoreSmsThanThereAre) {
  const std::string all = std::to_string(device_sms());
  EXPECT_THAT(refusal(good_session(), {.sms = device_sms() + 1}),
              Says(std::to_string(device_sms() + 1), all, "cuda:0"));
  EXPECT_THAT(refusal(good_session(), {.sms = device_sms(), .comm_sms = device_sms()}), Says(all, "SM"));
  EXPECT_THAT(refusal(good_session(), {.comm_sms = 200}), Says("200", all));
  EXPECT_THAT(refusal(good_session(), {.sms = 8, .comm_sms = 8}), Says("comm_sms = 8", "8"));
  EXPECT_THAT(refusal(good_session(), {.sms = -1}), Says("sms", "-1"));
  EXPECT_THAT(refusal(good_session(), {.comm_sms = -3}), Says("comm_sms", "-3"));
}

TEST_F(GpuPrepareRefuses, RowsThatAreNoMultipleOf16Bytes) {
  SessionOptions options = good_session();
  options.n = 70;  // D2.6
  EXPECT_THAT(refusal(options), Says("n = 70", "multiple of 8", "bfloat16"));
  LayerOptions layer = good_layer();
  layer.inner = 12;
  EXPECT_THAT(layer_refusal(layer), Says("inner = 12", "multiple of 8", "bfloat16"));
}

TEST_F(GpuPrepareRefuses, FaultsOutOfRange) {
  EXPECT_THAT(refusal(good_session(), {.faults = {.max_delay_us = -1}}), Says("max_delay_us", "-1"));
  EXPECT_THAT(refusal(good_session(), {.faults = {.first_epoch = ~uint64_t{0}}}), Says("first_epoch"));
}

TEST_F(GpuPrepareRefuses, OptionsOnWhichRanksDisagree) {
  const auto transports = make_device_world({0, 0});
  const auto first = make_cuda_executor(transports[0])->prepare(good_session());
  SessionOptions other = good_session();
  other.max_tokens = 9;
  EXPECT_THAT(message_of<InvalidArgument>([&] { make_cuda_executor(transports[1])->prepare(other); }),
              Says("rank 0", "rank 1", "max_tokens=8", "max_tokens=9"));
}

// Two ranks, three experts each, k = 16, n = 24, top 2, T = 6 and 5.
class GpuRunRefuses : public ::testing::Test {
 protected:
  void SetUp() override {
    TILEOVERLAP_NEEDS_GPU();
    Random random(1);
    scenario_ =
        make_scenario(random, {.placement = Placement::even(2, 6), .k = 16, .n = 24, .top_k = 2, .tokens = {6, 5}});
    world_ = std::make_unique<GpuSessionWorld>(scenario_, poisoned_gpu());
    call_ = world_->make_call(scenario_);
    args_ = world_->args(call_, 0);
  }
  void TearDown() override {
    if (world_ == nullptr) return;
    // Whatever was refused: nothing was started or written, and a good call goes through on both ranks.
    EXPECT_EQ(world_->session(0).epoch(), 0u);
    world_->synchronize_all();
    EXPECT_TRUE(all_nan(GpuSessionWorld::outs(call_)));
    EXPECT_TRUE(close_to_fp64(world_->run(scenario_), scenario_));
  }

  template <class ErrorType = InvalidArgument>
  std::string refusal(const RunArgs& args) {
    return message_of<ErrorType>([&] { world_->session(0).run(call_.plans[0], args); });
  }

  Scenario scenario_;
  std::unique_ptr<GpuSessionWorld> world_;
  GpuCall call_;
  RunArgs args_;
};

using Member = TensorArg& (*)(RunArgs&);
constexpr std::pair<const char*, Member> kArguments[] = {
    {"rows", [](RunArgs& args) -> TensorArg& { return args.rows; }},
    {"weights", [](RunArgs& args) -> TensorArg& { return args.weights.tensor; }},
    {"topk_ids", [](RunArgs& args) -> TensorArg& { return args.topk_ids; }},
    {"topk_weights", [](RunArgs& args) -> TensorArg& { return args.topk_weights; }},
    {"out", [](RunArgs& args) -> TensorArg& { return args.out; }}};

TEST_F(GpuRunRefuses, MissingTensorsByName) {
  for (const auto& [argument, member] : kArguments) {
    RunArgs args = args_;
    member(args) = {};
    EXPECT_THAT(refusal(args), Says(argument, "missing"));
  }
}

TEST_F(GpuRunRefuses, TensorsOfTheCpuAndOfOtherDevices) {
  for (const auto& [argument, member] : kArguments) {
    DLTensor elsewhere = *member(args_).tensor;
    RunArgs args = args_;
    member(args) = TensorArg(&elsewhere);
    elsewhere.device = {kDLCPU, 0};
    EXPECT_THAT(refusal(args), Says(argument, "cuda:0", "cpu"));
    elsewhere.device = {kDLCUDA, 3};
    EXPECT_THAT(refusal(args), Says(argument, "cuda:0", "cuda:3"));
    elsewhere.device = {kDLCUDAHost, 0};
    EXPECT_THAT(refusal(args), Says(argument, "cuda:0", "pinned"));
  }
}

TEST_F(GpuRunRefuses, RowsThatAreNotAligned) {
  // Wider memory, so that every view lies inside of it.
  const DeviceTensor pool(DType::kBFloat16, {16384});
  for (const auto& [argument, member] : {kArguments[0], kArguments[1], kArguments[4]}) {
    SCOPED_TRACE(argument);
    DLTensor moved = *member(args_).tensor;
    moved.data = pool.data();
    moved.byte_offset = 2;
    RunArgs args = args_;
    member(args) = TensorArg(&moved);
    EXPECT_THAT(refusal(args), Says("16 bytes"));
    moved.byte_offset = 0;
    std::array<int64_t, 3> strides{};  // of rows a few elements longer
    if (moved.ndim == 3) {
      strides = {24 * 20, 20, 1};
    } else {
      strides = {28, 1, 0};
    }
    moved.strides = strides.data();
    EXPECT_THAT(refusal(args), Says("16 bytes", moved.ndim == 3 ? "[480, 20, 1]" : "[28, 1]"));
  }
}

TEST_F(GpuRunRefuses, OtherDTypesByName) {
  const DeviceTensor rows(DType::kFloat32, {call_.plans[0]->rows, 16}), weights(DType::kFloat32, {3, 24, 16}),
      out(DType::kFloat16, {6, 24}), gates(DType::kBFloat16, {6, 2}), ids(DType::kFloat32, {6, 2});
  RunArgs args = args_;
  args.rows = rows.arg();
  EXPECT_THAT(refusal<DTypeError>(args), Says("rows", "bfloat16", "float32"));
  args = args_, args.weights = weights.arg();
  EXPECT_THAT(refusal<DTypeError>(args), Says("weights", "bfloat16", "float32"));
  args = args_, args.out = out.arg();
  EXPECT_THAT(refusal<DTypeError>(args), Says("out", "bfloat16", "float16"));
  args = args_, args.topk_weights = gates.arg();
  EXPECT_THAT(refusal<DTypeError>(args), Says("topk_weights", "float32", "bfloat16"));
  args = args_, args.topk_ids = ids.arg();
  EXPECT_THAT(refusal<DTypeError>(args), Says("topk_ids", "int32", "int64", "float32"));
}

TEST_F(GpuRunRefuses, OtherShapesWithBothShapes) {
  const DeviceTensor wide(DType::kBFloat16, {call_.plans[0]->rows, 24}), few(DType::kBFloat16, {1, 16}),
      experts(DType::kBFloat16, {2, 24, 16}), tokens(DType::kBFloat16, {5, 24}), gates(DType::kFloat32, {5, 2}),
      slots(DType::kInt32, {6, 3});
  RunArgs args = args_;
  args.rows = wide.arg();
  EXPECT_THAT(refusal(args), Says("rows", "[any, 16]"));
  args.rows = few.arg();
  EXPECT_THAT(refusal(args), Says("rows", std::to_string(call_.plans[0]->rows), "[1, 16]"));
  args = args_, args.weights = experts.arg();
  EXPECT_THAT(refusal(args), Says("weights", "[3, 24, 16]", "[2, 24, 16]"));
  args = args_, args.out = tokens.arg();
  EXPECT_THAT(refusal(args), Says("out", "[6, 24]", "[5, 24]"));
  args = args_, args.topk_weights = gates.arg();
  EXPECT_THAT(refusal(args), Says("topk_weights", "[6, 2]", "[5, 2]"));
  args = args_, args.topk_ids = slots.arg();
  EXPECT_THAT(refusal(args), Says("topk_ids", "top_k = 2", "[6, 3]"));
}

TEST_F(GpuRunRefuses, OutputsThatCannotBeWritten) {
  RunArgs args = args_;
  args.out.read_only = true;
  EXPECT_THAT(refusal(args), Says("out", "read-only"));
  DLTensor over_rows = *args_.out.tensor;
  over_rows.data = call_.rows[0].data();
  args.out = TensorArg(&over_rows);
  EXPECT_THAT(refusal(args), Says("out", "shares memory", "rows"));
}

TEST_F(GpuRunRefuses, PlansOfOtherRanksAndSizes) {
  const RouteCounts counts = counts_of(scenario_);
  const auto said = [&](const Plan& plan) {
    return message_of<InvalidArgument>([&] { world_->session(0).run(plan, args_); });
  };
  const auto plan = [&](int64_t n, const PlanOptions& options) {
    return make_plan(scenario_.placement, 0, counts, n, options);
  };
  EXPECT_THAT(said(call_.plans[1]), Says("plan", "rank", "1", "0"));
  EXPECT_THAT(said(plan(32, GpuSetup().plan)), Says("plan", "n = 32", "n = 24"));
  EXPECT_THAT(said(plan(24, {.tile_m = 128, .tile_n = 256})), Says("plan", "tile_n = 256", "tile_n = 128"));
  EXPECT_THAT(said(plan(24, {.layout = Layout::kOwnerAligned})), Says("plan", "owner_aligned", "compact"));
}

TEST_F(GpuRunRefuses, MoreTokensThanPrepared) {
  const DeviceTensor ids(DType::kInt32, {7, 2});
  args_.topk_ids = ids.arg();
  EXPECT_THAT(refusal<CapacityError>(args_), Says("rank 0", "T = 7", "max_tokens = 6"));
}

// What only the GPU sees: the call runs, the slots are skipped, and synchronize() says so once.
class GpuRunReports : public ::testing::Test {
 protected:
  void SetUp() override {
    TILEOVERLAP_NEEDS_GPU();
    Random random(2);
    scenario_ =
        make_scenario(random, {.placement = Placement::even(2, 6), .k = 16, .n = 24, .top_k = 2, .tokens = {6, 5}});
    scenario_.ids[0] = HostTensor(DType::kInt64, {6, 2}, {0, 5, 1, -1, 2, 3, 4, -1, 5, 5, -1, 0});
    world_ = std::make_unique<GpuSessionWorld>(scenario_, poisoned_gpu());
    call_ = world_->make_call(scenario_);
  }
  void TearDown() override {
    if (world_ == nullptr) return;
    world_->synchronize_all();  // told once
    EXPECT_TRUE(close_to_fp64(world_->run(scenario_), scenario_));
  }

  // Runs all ranks, rank 0 with these ids; the plan is that of the scenario's. Returns what rank 0's synchronize()
  // said.
  std::string report(const HostTensor& ids) {
    const DeviceTensor on_device(ids);
    RunArgs args = world_->args(call_, 0);
    args.topk_ids = on_device.arg(true);
    world_->session(0).run(call_.plans[0], args);
    world_->start(1, call_);
    const std::string said = message_of<InvalidArgument>([&] { world_->session(0).synchronize(); });
    world_->synchronize_all();  // told once, and on this rank only
    return said;
  }

  Scenario scenario_;
  std::unique_ptr<GpuSessionWorld> world_;
  GpuCall call_;
};

TEST_F(GpuRunReports, IdsOutsideTheExpertsWithAllTheirBitsAndSkipsThem) {
  for (const int64_t value : {int64_t{-2}, int64_t{6}, int64_t{1} << 40, (int64_t{1} << 32) + 3,
                              static_cast<int64_t>(0xFFFF0BDC00000001u), INT64_MIN}) {
    HostTensor ids = scenario_.ids[0].clone();
    ids.put(7, value);  // in place of a -1: the plan does not count it
    EXPECT_THAT(report(ids), Says("topk_ids", "rank 0", "token 3", "slot 1", std::to_string(value)));
    EXPECT_TRUE(close_to_fp64(GpuSessionWorld::outs(call_), scenario_)) << value;
  }
  EXPECT_EQ(world_->session(0).epoch(), 6u);  // they are calls like any other
}

TEST_F(GpuRunReports, TheFirstOfSeveralBadIds) {
  HostTensor ids = scenario_.ids[0].clone();
  ids.put(3, 99);
  ids.put(7, -7);
  ids.put(10, 1234);
  EXPECT_THAT(report(ids), Says("rank 0", "token 1", "slot 1", "99"));
}

TEST_F(GpuRunReports, IdsThatDoNotBelongToThePlanWithBothCounts) {
  HostTensor ids = scenario_.ids[0].clone();
  ids.put(8, 4);  // 5 -> 4: three copies for expert 5 become two, one for expert 4 becomes two
  const std::string said = report(ids);
  EXPECT_THAT(said, Says("topk_ids", "plan", "rank 0"));
  EXPECT_TRUE(testing::has_words(said, "expert 4") || testing::has_words(said, "expert 5")) << said;
  EXPECT_THAT(said, Says("2", testing::has_words(said, "expert 4") ? "1" : "3"));
}

TEST_F(GpuRunReports, BadIdsOfAnEarlierCallBehindGoodOnes) {
  HostTensor bad = scenario_.ids[0].clone();
  bad.put(3, 77);
  const DeviceTensor on_device(bad);
  RunArgs args = world_->args(call_, 0);
  args.topk_ids = on_device.arg(true);
  world_->session(0).run(call_.plans[0], args);
  world_->start(1, call_);
  world_->start_all(call_);
  world_->session(1).synchronize();
  EXPECT_THAT(message_of<InvalidArgument>([&] { world_->session(0).synchronize(); }), Says("token 1", "slot 1", "77"));
  EXPECT_TRUE(close_to_fp64(GpuSessionWorld::outs(call_), scenario_));
}

}  // namespace
}  // namespace tileoverlap
