// The whole layer on a GPU: planned on the device, against both references, refused on all ranks or on none.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "support/busy_kernel.hpp"
#include "support/compare.hpp"
#include "support/gpu_checks.hpp"
#include "support/gpu_world.hpp"
#include "support/messages.hpp"

namespace tileoverlap {
namespace {

using testing::as_scenario;
using testing::cuda_ok;
using testing::DeviceTensor;
using testing::disordered;
using testing::GpuLayerCall;
using testing::GpuLayerWorld;
using testing::GpuSetup;
using testing::GpuTile;
using testing::HostTensor;
using testing::LayerInputs;
using testing::LayerWorld;
using testing::make_layer_inputs;
using testing::message_of;
using testing::poisoned_gpu;
using testing::Random;
using testing::same_bits;
using testing::Says;

constexpr ExpertKind kKinds[] = {ExpertKind::kSingle, ExpertKind::kGelu, ExpertKind::kSiluGate};

std::vector<HostTensor> run_layer(const LayerInputs& layer, const GpuSetup& setup,
                                  RunMode mode = RunMode::kOverlapped) {
  return GpuLayerWorld(layer, setup).run(layer, mode);
}

class GpuLayerKinds : public ::testing::TestWithParam<std::tuple<ExpertKind, DType>> {
 protected:
  void SetUp() override { TILEOVERLAP_NEEDS_GPU(); }

  // Several bands for some experts, none for others, a rank without experts; widths that fill no tile.
  static LayerInputs inputs(uint64_t seed) {
    Random random(seed);
    return make_layer_inputs(random, {.placement = Placement::from_begins({0, 3, 3, 7}),
                                      .dtype = std::get<1>(GetParam()),
                                      .expert = std::get<0>(GetParam()),
                                      .hidden = 136,
                                      .inner = 72,
                                      .top_k = 3,
                                      .tokens = {230, 9, 57}});
  }
};
INSTANTIATE_TEST_SUITE_P(GpuLayer, GpuLayerKinds,
                         ::testing::Combine(::testing::ValuesIn(kKinds), ::testing::ValuesIn(testing::kGpuTypes)),
                         [](const auto& test) {
                           return std::string(name(std::get<0>(test.param))) + "_" + name(std::get<1>(test.param));
                         });

TEST_P(GpuLayerKinds, AgreeWithBothReferences) {
  const LayerInputs layer = inputs(1);
  const auto of_cpu = LayerWorld(layer, {}).run(layer);
  for (const GpuTile& tile : testing::gpu_tiles()) {
    GpuSetup setup = poisoned_gpu();
    setup.plan = tile.plan();
    const auto outs = run_layer(layer, setup);
    EXPECT_TRUE(close_to_fp64(outs, layer)) << tile;
    EXPECT_TRUE(close_to_cpu(outs, of_cpu)) << tile;
  }
}

TEST_P(GpuLayerKinds, GiveTheSameBitsHoweverTheyAreRun) {
  const LayerInputs layer = inputs(2);
  Random random(3);
  for (const GpuTile& tile : testing::gpu_tiles()) {
    GpuSetup plain;
    plain.plan = tile.plan();
    const auto expected = run_layer(layer, plain, RunMode::kSerial);
    for (int round = 0; round < 4; ++round) {
      GpuSetup setup = disordered(random.bits(), round < 2 ? 50 : 0);
      setup.plan = random_gpu_plan(random, tile);
      setup.cuda[0].comm_sms = random.between32(0, 6);
      const RunMode mode = round == 3 ? RunMode::kSerial : RunMode::kOverlapped;
      ASSERT_TRUE(same_bits(run_layer(layer, setup, mode), expected)) << repr(setup.plan);
    }
  }
}

TEST_P(GpuLayerKinds, PlanOnTheDeviceWhateverTheTokensAre) {
  LayerInputs layer = inputs(4);
  GpuLayerWorld world(layer, disordered(5));
  GpuLayerCall call = GpuLayerWorld::make_call(layer);
  Random random(6);
  uint64_t calls = 0;
  for (const std::vector<int64_t>& tokens :
       {std::vector<int64_t>{230, 9, 57}, {0, 3, 1}, {13, 0, 17}, {0, 0, 0}, {1, 1, 1}, {200, 9, 0}}) {
    draw_layer_tokens(random, layer, tokens);
    GpuLayerWorld::refill(layer, call);
    world.start_all(call);
    world.synchronize_all();
    ASSERT_TRUE(close_to_fp64(GpuLayerWorld::outs(call), layer)) << tokens[0] << ' ' << tokens[1] << ' ' << tokens[2];
    ++calls;
    for (int32_t rank = 0; rank < 3; ++rank) ASSERT_EQ(world.layer(rank).epoch(), calls);
  }
}

TEST(GpuLayer, EqualsASessionThatIsFedByHand) {
  TILEOVERLAP_NEEDS_GPU();
  Random random(11);
  const auto tiles = testing::gpu_tiles();
  for (int round = 0; round < 25; ++round) {
    const auto shapes = testing::random_gpu_shapes(random);
    const LayerInputs layer = make_layer_inputs(random, {.placement = shapes.placement,
                                                         .dtype = shapes.dtype,
                                                         .expert = ExpertKind::kSingle,
                                                         .hidden = shapes.n,
                                                         .inner = shapes.k,
                                                         .top_k = shapes.top_k,
                                                         .tokens = shapes.tokens});
    GpuSetup setup = poisoned_gpu();
    setup.plan = random_gpu_plan(random, any_of(random, tiles));
    ASSERT_TRUE(same_bits(run_layer(layer, setup), testing::run_on_gpu(as_scenario(layer), setup)))
        << "round " << round << ": " << layer.shapes.placement.repr() << ' ' << repr(setup.plan);
  }
}

TEST(GpuLayer, OfRandomShapesAgreesWithTheFp64Reference) {
  TILEOVERLAP_NEEDS_GPU();
  Random random(12);
  const auto tiles = testing::gpu_tiles();
  for (int round = 0; round < 30; ++round) {
    auto shapes = testing::random_gpu_shapes(random);
    for (int64_t& tokens : shapes.tokens) tokens = std::min<int64_t>(tokens, 12);  // its reference is a slow one
    const LayerInputs layer = make_layer_inputs(random, {.placement = shapes.placement,
                                                         .dtype = shapes.dtype,
                                                         .expert = kKinds[round % 3],
                                                         .hidden = std::min<int64_t>(shapes.n, 264),
                                                         .inner = std::min<int64_t>(shapes.k, 264),
                                                         .top_k = shapes.top_k,
                                                         .tokens = shapes.tokens});
    GpuSetup setup = disordered(random.bits());
    setup.plan = random_gpu_plan(random, any_of(random, tiles));
    ASSERT_TRUE(close_to_fp64(run_layer(layer, setup), layer))
        << "round " << round << ", " << name(layer.shapes.expert) << ", " << layer.shapes.placement.repr() << ' '
        << repr(setup.plan);
  }
}

LayerInputs three_ranks(uint64_t seed, ExpertKind kind = ExpertKind::kGelu) {
  Random random(seed);
  return make_layer_inputs(random,
                           {.placement = Placement::even(3, 6), .expert = kind, .top_k = 2, .tokens = {8, 5, 7}});
}

TEST(GpuLayer, CallsInFlightKeepTheirOwnResults) {
  TILEOVERLAP_NEEDS_GPU();
  std::vector<LayerInputs> inputs;
  for (uint64_t i = 0; i < 4; ++i) inputs.push_back(three_ranks(20 + i));
  for (const bool rank_by_rank : {false, true}) {
    GpuLayerWorld world(inputs[0], disordered(2, 200));
    std::vector<GpuLayerCall> calls;
    for (const LayerInputs& layer : inputs) calls.push_back(GpuLayerWorld::make_call(layer));
    if (rank_by_rank) {  // one rank is calls ahead of the others
      for (int32_t rank = 0; rank < 3; ++rank) {
        for (const GpuLayerCall& call : calls) world.start(rank, call);
      }
    } else {
      for (const GpuLayerCall& call : calls) world.start_all(call);
    }
    world.synchronize_all();
    for (size_t i = 0; i < 4; ++i) {
      ASSERT_TRUE(close_to_fp64(GpuLayerWorld::outs(calls[i]), inputs[i])) << "call " << i;
    }
    EXPECT_EQ(world.layer(1).epoch(), 4u);
  }
}

TEST(GpuLayer, TheHostNeverSeesTheIds) {
  // The calls are launched while the ids are not written yet: whatever waited for counts on the host would use others.
  TILEOVERLAP_NEEDS_GPU();
  testing::load_busy_kernels();
  const LayerInputs layer = three_ranks(30);
  GpuLayerWorld world(layer, poisoned_gpu());
  world.run(layer);
  GpuLayerCall call = GpuLayerWorld::make_call(layer);
  std::vector<DeviceTensor> real_ids;
  for (size_t rank = 0; rank < 3; ++rank) {
    real_ids.emplace_back(layer.ids[rank]);
    call.ids[rank].poison();  // -1 everywhere
  }
  cudaEvent_t written = nullptr;
  cuda_ok(cudaEventCreateWithFlags(&written, cudaEventDisableTiming), "cudaEventCreate");
  for (int32_t rank = 0; rank < 3; ++rank) {
    const auto r = static_cast<size_t>(rank);
    testing::keep_busy(1, testing::kLongestBusyNs, world.stream(rank));
    cuda_ok(cudaMemcpyAsync(call.ids[r].data(), real_ids[r].data(), layer.ids[r].bytes(), cudaMemcpyDeviceToDevice,
                            world.stream(rank)),
            "cudaMemcpyAsync");
    if (rank == 0) cuda_ok(cudaEventRecord(written, world.stream(rank)), "cudaEventRecord");
    world.start(rank, call);
    if (rank == 0) {
      EXPECT_EQ(cudaEventQuery(written), cudaErrorNotReady);  // forward() returned before
      (void)cudaGetLastError();                               // which that answer is taken for
    }
  }
  world.synchronize_all();
  EXPECT_TRUE(close_to_fp64(GpuLayerWorld::outs(call), layer));
  (void)cudaEventDestroy(written);
}

TEST(GpuLayer, TakesTokensByTheirRowStride) {
  TILEOVERLAP_NEEDS_GPU();
  const LayerInputs layer = three_ranks(31);
  const auto expected = run_layer(layer, {});
  GpuLayerWorld world(layer, poisoned_gpu());
  GpuLayerCall call = GpuLayerWorld::make_call(layer);
  std::vector<std::vector<int64_t>> shapes, strides(3, {80, 1});
  for (size_t rank = 0; rank < 3; ++rank) {
    HostTensor wide(DType::kBFloat16, {layer.x[rank].size(0), 80});
    wide.poison();
    for (int64_t i = 0; i < layer.x[rank].elements(); ++i) wide.put(i / 32 * 80 + i % 32, layer.x[rank].get(i));
    call.x[rank] = DeviceTensor(wide);
    shapes.push_back({layer.x[rank].size(0), 32});
  }
  for (size_t rank = 0; rank < 3; ++rank) {
    call.x[rank].dl().shape = shapes[rank].data();
    call.x[rank].dl().strides = strides[rank].data();
  }
  world.start_all(call);
  world.synchronize_all();
  EXPECT_TRUE(same_bits(GpuLayerWorld::outs(call), expected));
}

TEST(GpuLayer, PassesTwoToThe32Epochs) {
  TILEOVERLAP_NEEDS_GPU();
  LayerInputs layer = three_ranks(32, ExpertKind::kSiluGate);
  GpuSetup setup = poisoned_gpu();
  setup.cuda[0].faults.first_epoch = (uint64_t{1} << 32) - 3;
  GpuLayerWorld world(layer, setup);
  Random random(33);
  for (uint64_t call = 1; call <= 6; ++call) {
    draw_layer_tokens(random, layer, {8, 5, 7});
    ASSERT_TRUE(close_to_fp64(world.run(layer), layer)) << "call " << call;
    ASSERT_EQ(world.layer(2).epoch(), setup.cuda[0].faults.first_epoch + call);
  }
}

TEST(GpuLayer, WithoutAnyCopyGivesZeros) {
  TILEOVERLAP_NEEDS_GPU();
  for (const ExpertKind kind : kKinds) {
    LayerInputs layer = three_ranks(34, kind);
    for (HostTensor& ids : layer.ids) ids.fill(-1);
    EXPECT_TRUE(all_zero(run_layer(layer, poisoned_gpu()))) << name(kind);
  }
}

TEST(GpuLayer, WithoutTokensAnywhereIsACallLikeAnyOther) {
  TILEOVERLAP_NEEDS_GPU();
  for (const ExpertKind kind : kKinds) {
    for (const int32_t ranks : {1, 4}) {
      Random random(35);
      LayerInputs layer = make_layer_inputs(random, {.placement = Placement::even(ranks, 4),
                                                     .expert = kind,
                                                     .top_k = 2,
                                                     .tokens = std::vector<int64_t>(static_cast<size_t>(ranks), 0)});
      for (const int64_t max_tokens : {0, 16}) {
        GpuSetup setup = poisoned_gpu();
        setup.max_tokens = max_tokens;
        GpuLayerWorld world(layer, setup);
        for (int call = 0; call < 3; ++call) world.run(layer);
        EXPECT_EQ(world.layer(0).epoch(), 3u) << name(kind) << ", max_tokens = " << max_tokens;
      }
    }
  }
}

TEST(GpuLayer, RanksWithoutTokensOrExpertsTakePart) {
  TILEOVERLAP_NEEDS_GPU();
  Random random(36);
  for (const std::vector<int64_t>& tokens : {std::vector<int64_t>{0, 40, 30, 20}, {40, 0, 0, 0}, {0, 0, 0, 9}}) {
    for (const std::vector<int32_t>& begins : {std::vector<int32_t>{0, 0, 3, 3, 5}, {0, 2, 4, 6, 8}, {0, 0, 0, 0, 1}}) {
      const LayerInputs layer = make_layer_inputs(
          random,
          {.placement = Placement::from_begins(begins), .expert = ExpertKind::kSiluGate, .top_k = 2, .tokens = tokens});
      ASSERT_TRUE(close_to_fp64(run_layer(layer, poisoned_gpu()), layer)) << layer.shapes.placement.repr();
    }
  }
}

// Three ranks, two experts each, hidden 32, inner 16, top 2, T = 6, 5 and 4.
class GpuForwardRefuses : public ::testing::Test {
 protected:
  void SetUp() override {
    TILEOVERLAP_NEEDS_GPU();
    Random random(1);
    inputs_ = make_layer_inputs(
        random, {.placement = Placement::even(3, 6), .expert = ExpertKind::kGelu, .top_k = 2, .tokens = {6, 5, 4}});
    GpuSetup setup = poisoned_gpu();
    setup.max_tokens = 6;
    world_ = std::make_unique<GpuLayerWorld>(inputs_, setup);
    expected_ = run_layer(inputs_, {}, RunMode::kSerial);
    call_ = GpuLayerWorld::make_call(inputs_);
    args_ = world_->args(call_, 1);
  }
  void TearDown() override {
    if (world_ == nullptr) return;
    EXPECT_TRUE(all_nan(GpuLayerWorld::outs(call_)));  // nothing was written on any rank
    EXPECT_TRUE(same_bits(world_->run(inputs_), expected_));
    ++calls_;
    for (int32_t rank = 0; rank < 3; ++rank) EXPECT_EQ(world_->layer(rank).epoch(), calls_);  // refused calls count
    world_->synchronize_all();  // everything has been told
  }

  void expect_peers_told(const std::string& said) {
    for (const int32_t rank : {0, 2}) {
      const std::string told = message_of<CallRefused>([&] { world_->layer(rank).synchronize(); });
      EXPECT_THAT(told, Says("rank 1"));
      EXPECT_NE(told.find(said), std::string::npos) << told;  // the reason is passed on
      world_->layer(rank).synchronize();                      // told once
    }
  }

  // Rank 1 makes its call with `args`, which the host refuses; the others make a good one. Returns what rank 1 said.
  template <class ErrorType = InvalidArgument>
  std::string refusal(const LayerArgs& args) {
    world_->start(0, call_);
    const std::string said = message_of<ErrorType>([&] { world_->layer(1).forward(args); });
    world_->start(2, call_);
    ++calls_;
    expect_peers_told(said);
    world_->layer(1).synchronize();  // forward() has told it
    return said;
  }

  // Rank 1 makes its call with ids that only the GPU sees. Returns what rank 1 said.
  std::string device_refusal(const HostTensor& ids) {
    const DeviceTensor on_device(ids);
    args_.topk_ids = on_device.arg(true);
    world_->start(0, call_);
    world_->layer(1).forward(args_);
    world_->start(2, call_);
    ++calls_;
    const std::string said = message_of<InvalidArgument>([&] { world_->layer(1).synchronize(); });
    world_->layer(1).synchronize();  // told once
    expect_peers_told(said);
    return said;
  }

  LayerInputs inputs_;
  std::vector<HostTensor> expected_;
  std::unique_ptr<GpuLayerWorld> world_;
  GpuLayerCall call_;
  LayerArgs args_;
  uint64_t calls_ = 0;
};

TEST_F(GpuForwardRefuses, MissingTensorsByName) {
  using Member = TensorArg& (*)(LayerArgs&);
  for (const auto& [argument, member] : std::initializer_list<std::pair<const char*, Member>>{
           {"x", [](LayerArgs& args) -> TensorArg& { return args.x; }},
           {"topk_ids", [](LayerArgs& args) -> TensorArg& { return args.topk_ids; }},
           {"topk_weights", [](LayerArgs& args) -> TensorArg& { return args.topk_weights; }},
           {"up", [](LayerArgs& args) -> TensorArg& { return args.up.tensor; }},
           {"down", [](LayerArgs& args) -> TensorArg& { return args.down.tensor; }},
           {"out", [](LayerArgs& args) -> TensorArg& { return args.out; }}}) {
    LayerArgs args = args_;
    member(args) = {};
    EXPECT_THAT(refusal(args), Says(argument, "missing"));
  }
}

TEST_F(GpuForwardRefuses, OtherDTypesShapesAndDevices) {
  const DeviceTensor single(DType::kFloat32, {5, 32}), narrow(DType::kBFloat16, {5, 16}),
      up(DType::kBFloat16, {2, 32, 16});
  const HostTensor on_host(DType::kBFloat16, {5, 32});
  LayerArgs args = args_;
  args.x = single.arg();
  EXPECT_THAT(refusal<DTypeError>(args), Says("x", "bfloat16", "float32"));
  args.x = narrow.arg();
  EXPECT_THAT(refusal(args), Says("x", "[5, 32]", "[5, 16]"));
  args.x = on_host.arg();
  EXPECT_THAT(refusal(args), Says("x", "cuda:0", "cpu"));
  args = args_, args.up = up.arg();
  EXPECT_THAT(refusal(args), Says("up", "[2, 16, 32]", "[2, 32, 16]"));
}

TEST_F(GpuForwardRefuses, MoreTokensThanPrepared) {
  const DeviceTensor ids(DType::kInt32, {7, 2});
  args_.topk_ids = ids.arg();
  EXPECT_THAT(refusal<CapacityError>(args_), Says("rank 1", "T = 7", "max_tokens = 6"));
}

TEST_F(GpuForwardRefuses, IdsOutsideTheExpertsWithAllTheirBits) {
  // -2, one too many, and values whose low 32 bits are a legal id (D4.4).
  const std::vector<int64_t> bad = {
      -2, 6, int64_t{1} << 40, (int64_t{1} << 32) + 3, static_cast<int64_t>(0xFFFF0BDC00000003u), INT64_MIN, INT64_MAX};
  for (const int64_t value : bad) {
    HostTensor ids(DType::kInt64, {5, 2});
    ids.put(3, value);
    EXPECT_THAT(device_refusal(ids), Says("rank 1", "token 1", "slot 1", std::to_string(value)));
  }
  for (const int32_t value : {-2, 6, INT32_MIN, INT32_MAX}) {
    HostTensor ids(DType::kInt32, {5, 2});
    ids.put(9, value);
    EXPECT_THAT(device_refusal(ids), Says("rank 1", "token 4", "slot 1", std::to_string(value)));
  }
}

TEST_F(GpuForwardRefuses, TheFirstOfManyBadIdsIsNamed) {
  HostTensor ids(DType::kInt32, {5, 2});
  ids.fill(77);
  ids.put(0, 5);
  ids.put(1, -1);
  EXPECT_THAT(device_refusal(ids), Says("rank 1", "token 1", "slot 0", "77"));
}

TEST_F(GpuForwardRefuses, TheFirstOfSeveralRefusedCallsIsTold) {
  LayerArgs first = args_, second = args_;
  first.x = {};
  second.out = {};
  for (int32_t number = 0; number < 2; ++number) {
    world_->start(0, call_);
    world_->start(2, call_);
    message_of<InvalidArgument>([&] { world_->layer(1).forward(number == 0 ? first : second); });
    ++calls_;
  }
  for (const int32_t rank : {0, 2}) {
    EXPECT_THAT(message_of<CallRefused>([&] { world_->layer(rank).synchronize(); }), Says("rank 1", "x", "missing"));
    world_->layer(rank).synchronize();  // told once
  }
}

TEST_F(GpuForwardRefuses, AGoodCallBehindARefusedOneRuns) {
  LayerArgs bad = args_;
  bad.x = {};
  const GpuLayerCall behind = GpuLayerWorld::make_call(inputs_);
  world_->start(0, call_);
  world_->start(2, call_);
  message_of<InvalidArgument>([&] { world_->layer(1).forward(bad); });
  world_->start_all(behind);
  calls_ += 2;
  for (const int32_t rank : {0, 2}) message_of<CallRefused>([&] { world_->layer(rank).synchronize(); });
  world_->layer(1).synchronize();
  EXPECT_TRUE(same_bits(GpuLayerWorld::outs(behind), expected_));
}

TEST_F(GpuForwardRefuses, AllRanksAtOnce) {
  for (int32_t rank = 0; rank < 3; ++rank) {
    LayerArgs args = world_->args(call_, rank);
    args.down = {};
    EXPECT_THAT(message_of<InvalidArgument>([&] { world_->layer(rank).forward(args); }), Says("down", "missing"));
  }
  ++calls_;
  for (int32_t rank = 0; rank < 3; ++rank) {
    try {
      world_->layer(rank).synchronize();
    } catch (const CallRefused& error) {  // of the others' words; its own it has from forward()
      EXPECT_THAT(error.what(), Says("down", "missing"));
    }
  }
}

TEST_F(GpuForwardRefuses, RefusedAndGoodCallsTakeTurns) {
  HostTensor bad(DType::kInt64, {5, 2});
  bad.put(9, 1000);
  for (int round = 0; round < 5; ++round) {
    device_refusal(bad);
    ASSERT_TRUE(same_bits(world_->run(inputs_), expected_)) << "round " << round;
    ++calls_;
  }
}

}  // namespace
}  // namespace tileoverlap
