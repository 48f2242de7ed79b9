// Bugs that others have reported, as inputs for this library: kinds 1 to 9 of the collection, those for one GPU. Each
// test names its cases. Covered elsewhere: D4.4 in gpu_layer_test.cpp and gpu_errors_test.cpp (ids whose low word alone
// is legal), D6.4 in gpu_errors_test.cpp (numbers of SMs), half of D2.6 there, too (a width of 70).

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "support/busy_kernel.hpp"
#include "support/compare.hpp"
#include "support/gpu_checks.hpp"
#include "support/gpu_world.hpp"
#include "support/messages.hpp"

namespace tileoverlap {
namespace {

using testing::cuda_ok;
using testing::CudaStream;
using testing::DeviceTensor;
using testing::disordered;
using testing::GpuCall;
using testing::GpuLayerCall;
using testing::GpuLayerWorld;
using testing::GpuSessionWorld;
using testing::GpuSetup;
using testing::GpuTile;
using testing::HostTensor;
using testing::LayerInputs;
using testing::make_layer_inputs;
using testing::make_scenario;
using testing::message_of;
using testing::poisoned_gpu;
using testing::Random;
using testing::run_on_gpu;
using testing::same_bits;
using testing::Says;
using testing::Scenario;

class GpuCases : public ::testing::Test {
 protected:
  void SetUp() override {
    TILEOVERLAP_NEEDS_GPU();
    (void)cudaGetLastError();
  }
  // A launch that failed, with grid 0 for one, would be blamed on the caller's next call.
  void TearDown() override {
    if (IsSkipped()) return;
    EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  }
};

GpuSetup tiles_of(const GpuTile& tile) {
  GpuSetup setup = poisoned_gpu();
  setup.plan = tile.plan();
  return setup;
}

// ids[i] = pattern(i) on every rank.
template <class Pattern>
void route(Scenario& scenario, Pattern pattern) {
  for (HostTensor& ids : scenario.ids) {
    for (int64_t i = 0; i < ids.elements(); ++i) ids.put(i, pattern(i));
  }
}

// Every expert multiplies by its number plus one: weights (e + 1) * I.
void make_multipliers(Scenario& scenario) {
  for (int32_t rank = 0; rank < scenario.world(); ++rank) {
    auto& weights = scenario.weights[static_cast<size_t>(rank)];
    weights.fill(0);
    for (int32_t local = 0; local < scenario.placement.experts_on(rank); ++local) {
      for (int64_t i = 0; i < scenario.n; ++i) {
        weights.put((local * scenario.n + i) * scenario.k + i, scenario.placement.begin(rank) + local + 1);
      }
    }
  }
}

// Kind 1: nothing to do.

TEST_F(GpuCases, D1_3_NoTokensAnywhere) {
  for (const int32_t ranks : {1, 4}) {
    const std::vector<int64_t> none(static_cast<size_t>(ranks), 0);
    Random random(1);
    const Scenario scenario =
        make_scenario(random, {.placement = Placement::even(ranks, 4), .n = 256, .top_k = 2, .tokens = none});
    const LayerInputs layer = make_layer_inputs(
        random, {.placement = Placement::even(ranks, 4), .expert = ExpertKind::kGelu, .top_k = 2, .tokens = none});
    for (const int64_t max_tokens : {0, 8}) {
      GpuSetup setup = poisoned_gpu();
      setup.max_tokens = max_tokens;
      GpuSessionWorld world(scenario, setup);
      GpuLayerWorld layers(layer, setup);
      for (uint64_t number = 1; number <= 3; ++number) {
        const auto outs = world.run(scenario);
        EXPECT_EQ(outs[0].size(0), 0);
        EXPECT_EQ(outs[0].size(1), 256);
        layers.run(layer);
        EXPECT_EQ(cudaGetLastError(), cudaSuccess);
        EXPECT_EQ(world.session(0).epoch(), number);  // an empty call is a step, too
        EXPECT_EQ(layers.layer(0).epoch(), number);
      }
    }
  }
}

TEST_F(GpuCases, D1_4_NullDataOfEmptyTensorsOnly) {
  Random random(2);
  const Scenario scenario =
      make_scenario(random, {.placement = Placement::even(1, 2), .k = 1024, .n = 1024, .top_k = 1, .tokens = {0}});
  GpuSetup setup;
  setup.max_tokens = 4;
  GpuSessionWorld world(scenario, setup);
  const GpuCall call = world.make_call(scenario);
  std::array<int64_t, 2> empty{0, 1024}, one{1, 1024}, strides{1024, 1}, no_pairs{0, 1};
  DLTensor nothing{.data = nullptr,
                   .device = {kDLCUDA, 0},
                   .ndim = 2,
                   .dtype = dl_dtype(DType::kBFloat16),
                   .shape = empty.data(),
                   .strides = strides.data(),
                   .byte_offset = 0};
  DLTensor no_ids = nothing, no_gates = nothing;
  no_ids.dtype = dl_dtype(DType::kInt32);
  no_gates.dtype = dl_dtype(DType::kFloat32);
  no_ids.shape = no_gates.shape = no_pairs.data();
  RunArgs args = world.args(call, 0);
  args.rows = args.out = TensorArg(&nothing);
  args.topk_ids = TensorArg(&no_ids);
  args.topk_weights = TensorArg(&no_gates);
  world.session(0).run(call.plans[0], args);
  world.session(0).synchronize();
  DLTensor null_row = nothing;
  null_row.shape = one.data();
  args.rows = TensorArg(&null_row);
  EXPECT_THAT(message_of<InvalidArgument>([&] { world.session(0).run(call.plans[0], args); }),
              Says("rows", "[1, 1024]", "null"));
}

TEST_F(GpuCases, D1_8_AnyStridesOfTensorsWithoutElements) {
  Random random(3);
  LayerInputs layer =
      make_layer_inputs(random, {.placement = Placement::even(1, 2), .inner = 512, .top_k = 1, .tokens = {0}});
  GpuLayerWorld world(layer, poisoned_gpu());
  const GpuLayerCall call = GpuLayerWorld::make_call(layer);
  for (std::array<int64_t, 2> strides : {std::array<int64_t, 2>{512, 1}, {1, 1}, {0, 0}}) {
    LayerArgs args = world.args(call, 0);
    DLTensor x = *args.x.tensor;
    x.strides = strides.data();
    args.x = TensorArg(&x);
    world.layer(0).forward(args);
    world.layer(0).synchronize();
  }
}

// Kind 2: sizes that no tile divides.

TEST_F(GpuCases, D2_1_APlanForTilesOfAnotherHeight) {
  // Rows packed for 64-row tiles, multiplied in 128-row tiles, would meet the wrong expert's weights.
  Random random(4);
  Scenario scenario = make_scenario(random, {.placement = Placement::even(2, 3), .top_k = 1, .tokens = {323, 0}});
  for (int64_t i = 0; i < 323; ++i) scenario.ids[0].put(i, i < 128 ? 0 : i < 258 ? 1 : 2);  // 128, 130 and 65 rows
  GpuSessionWorld world(scenario, poisoned_gpu());
  GpuCall call = world.make_call(scenario);
  call.plans[0] = make_plan(scenario.placement, 0, counts_of(scenario), scenario.n, {.tile_m = 64, .tile_n = 128});
  EXPECT_THAT(message_of<InvalidArgument>([&] { world.start(0, call); }), Says("tile_m = 64", "tile_m = 128"));
  EXPECT_TRUE(all_nan(GpuSessionWorld::outs(call)));
  for (const GpuTile& tile : testing::gpu_tiles()) {
    EXPECT_TRUE(close_to_fp64(run_on_gpu(scenario, tiles_of(tile)), scenario)) << tile;
  }
}

TEST_F(GpuCases, D2_2_AnOddNumberOfTilesForEachExpert) {
  // 11 column tiles; two experts with one band each, then with one and three.
  Random random(5);
  for (const int64_t second : {100, 300}) {
    Scenario scenario = make_scenario(
        random,
        {.placement = Placement::from_begins({0, 2, 2}), .k = 64, .n = 1408, .top_k = 1, .tokens = {0, 90 + second}});
    route(scenario, [](int64_t i) { return i < 90 ? 0 : 1; });
    for (const Layout layout : {Layout::kOwnerAligned, Layout::kCompact}) {
      for (const GpuTile& tile : testing::gpu_tiles()) {
        GpuSetup setup = tiles_of(tile);
        setup.plan.layout = layout;
        EXPECT_TRUE(close_to_fp64(run_on_gpu(scenario, setup), scenario)) << tile << ", " << second;
      }
    }
  }
}

TEST_F(GpuCases, D2_3_AFullTileHasAllItsRows) {
  constexpr int64_t kInner = 64;
  Random random(6);
  Scenario scenario = make_scenario(
      random, {.placement = Placement::even(2, 1), .k = kInner, .n = 128, .top_k = 1, .tokens = {0, 128}});
  set_all_ids(scenario, 0);
  scenario.copies[1].fill(1);
  scenario.weights[0].fill(1);
  scenario.gates[1].fill(1);
  for (const GpuTile& tile : testing::gpu_tiles()) {
    const auto outs = run_on_gpu(scenario, tiles_of(tile));
    for (int64_t token = 0; token < 128; ++token) {
      for (int64_t j = 0; j < 128; ++j) ASSERT_EQ(outs[1].get(token * 128 + j), kInner) << tile << ", row " << token;
    }
  }
}

TEST_F(GpuCases, D2_5_AnyNumberOfRowsIsLegal) {
  Random random(7);
  Scenario scenario =
      make_scenario(random, {.placement = Placement::even(1, 1), .k = 512, .n = 256, .top_k = 1, .tokens = {1471}});
  set_all_ids(scenario, 0);
  const auto outs = run_on_gpu(scenario, poisoned_gpu());
  EXPECT_TRUE(close_to_fp64(outs, scenario));
}

TEST_F(GpuCases, D2_6_AWidthThatIsNoMultipleOfTheTile) {
  Random random(8);
  for (const int64_t n : {72, 8, 136}) {
    const Scenario scenario =
        make_scenario(random, {.placement = Placement::even(2, 4), .k = 512, .n = n, .top_k = 2, .tokens = {100, 112}});
    for (const GpuTile& tile : testing::gpu_tiles()) {
      EXPECT_TRUE(close_to_fp64(run_on_gpu(scenario, tiles_of(tile)), scenario)) << tile << ", n = " << n;
    }
  }
}

TEST_F(GpuCases, D2_7_RowCountsAroundTheTileHeightAndItsHalf) {
  for (const int64_t rows : {1, 2, 3, 63, 64, 65, 127, 128, 129}) {
    Random random(static_cast<uint64_t>(rows));
    Scenario scenario = make_scenario(
        random, {.placement = Placement::even(2, 8), .k = 24, .n = 40, .top_k = 4, .tokens = {rows, rows}});
    route(scenario, [](int64_t i) { return i % 4; });  // `rows` of each owner for each of rank 0's experts
    for (const Layout layout : {Layout::kOwnerAligned, Layout::kCompact}) {
      GpuSetup setup = poisoned_gpu();
      setup.plan.layout = layout;
      setup.cuda[0].comm_sms = 2;
      ASSERT_TRUE(close_to_fp64(run_on_gpu(scenario, setup), scenario)) << rows;
    }
  }
}

TEST_F(GpuCases, D2_9_WideAndShallow) {
  struct Size {
    int64_t rows, n, k;
  };
  for (const Size& size : {Size{32, 7168, 256}, Size{1, 8192, 1024}, Size{130, 1024, 8}}) {
    Random random(9);
    Scenario scenario = make_scenario(
        random, {.placement = Placement::even(2, 1), .k = size.k, .n = size.n, .top_k = 1, .tokens = {0, size.rows}});
    set_all_ids(scenario, 0);
    for (const GpuTile& tile : testing::gpu_tiles()) {
      EXPECT_TRUE(close_to_fp64(run_on_gpu(scenario, tiles_of(tile)), scenario)) << tile << ", k = " << size.k;
    }
  }
}

// Kind 3: offsets beyond 32 bits.

TEST_F(GpuCases, D3_3_AnExpertThatBeginsAt2To31Elements) {
  constexpr int64_t kExperts = 129, kWidth = 4096, kTokens = 5;
  constexpr size_t kMatrix = size_t{kWidth} * kWidth * 2, kBytes = kMatrix * kExperts;
  size_t free = 0, total = 0;
  cuda_ok(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  if (free < kBytes + (size_t{1} << 30)) GTEST_SKIP() << "needs 5.3 GB of device memory, " << free << " are free";
  // Expert 128's rows have few entries that are not 0, so that the reference is short; all other experts are NaN.
  const auto value = [](int64_t j, int64_t i) { return static_cast<float>((j * 7 + i * 13) % 15 - 7) / 8; };
  HostTensor last(DType::kBFloat16, {kWidth, kWidth}), rows(DType::kBFloat16, {128, kWidth}),
      ids(DType::kInt32, {kTokens, 1}), gates(DType::kFloat32, {kTokens, 1});
  for (int64_t j = 0; j < kWidth; ++j) {
    for (int64_t i = 0; i < kWidth; ++i) last.put(j * kWidth + i, value(j, i));
  }
  std::vector<double> expected(static_cast<size_t>(kTokens * kWidth), 0.0);
  ids.fill(kExperts - 1);
  for (int64_t token = 0; token < kTokens; ++token) {
    gates.put(token, 0.5f * static_cast<float>(token + 1));
    for (int64_t i = token; i < kWidth; i += 509) {
      const auto x = static_cast<float>(i % 5 + 1);
      rows.put(token * kWidth + i, x);
      for (int64_t j = 0; j < kWidth; ++j) {
        expected[static_cast<size_t>(token * kWidth + j)] += 0.5 * static_cast<double>(token + 1) * x * value(j, i);
      }
    }
  }
  void* memory = nullptr;
  cuda_ok(cudaMalloc(&memory, kBytes), "cudaMalloc");
  const std::shared_ptr<void> weights(memory, [](void* pointer) { (void)cudaFree(pointer); });
  cuda_ok(cudaMemset(memory, 0xff, kBytes - kMatrix), "cudaMemset");
  cuda_ok(cudaMemcpy(static_cast<std::byte*>(memory) + kBytes - kMatrix, last.data(), kMatrix, cudaMemcpyHostToDevice),
          "cudaMemcpy");
  cuda_ok(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  std::array<int64_t, 3> shape{kExperts, kWidth, kWidth};
  DLTensor all{.data = memory,
               .device = {kDLCUDA, 0},
               .ndim = 3,
               .dtype = dl_dtype(DType::kBFloat16),
               .shape = shape.data(),
               .strides = nullptr,
               .byte_offset = 0};
  const Placement placement = Placement::even(1, kExperts);
  for (const GpuTile& tile : testing::gpu_tiles()) {
    const auto session = make_cuda_executor(make_device_world({0})[0])
                             ->prepare({.placement = placement,
                                        .k = kWidth,
                                        .n = kWidth,
                                        .top_k = 1,
                                        .max_tokens = kTokens,
                                        .plan = tile.plan()});
    const TensorArg host_ids[] = {ids.arg()};
    const Plan plan = make_plan(placement, 0, count_routes(placement, host_ids), kWidth, tile.plan());
    const DeviceTensor on_device(rows), device_ids(ids), device_gates(gates);
    DeviceTensor out(DType::kBFloat16, {kTokens, kWidth});
    out.poison();
    CudaStream stream;
    session->run(plan, {.rows = on_device.arg(true),
                        .weights = TensorArg(&all, true),
                        .topk_ids = device_ids.arg(true),
                        .topk_weights = device_gates.arg(true),
                        .out = out.arg(),
                        .stream = stream.stream});
    session->synchronize();
    EXPECT_TRUE(close_to(out.download(), expected)) << tile;
  }
}

TEST_F(GpuCases, D3_5_MoreCopiesThan65535) {
  Random random(10);
  const Scenario scenario =
      make_scenario(random, {.placement = Placement::even(2, 16), .k = 8, .n = 64, .top_k = 8, .tokens = {8192, 100}});
  EXPECT_TRUE(close_to_fp64(run_on_gpu(scenario, poisoned_gpu()), scenario));
  const LayerInputs layer = make_layer_inputs(
      random, {.placement = Placement::even(2, 16), .hidden = 64, .inner = 8, .top_k = 8, .tokens = {8192, 100}});
  EXPECT_TRUE(close_to_fp64(GpuLayerWorld(layer, poisoned_gpu()).run(layer), layer));
}

// Kind 4: ids.

TEST_F(GpuCases, D4_1_ASkippedSlotIsLeftOutAndNothingIsRenormalised) {
  Random random(11);
  Scenario scenario =
      make_scenario(random, {.placement = Placement::even(2, 4), .k = 8, .n = 8, .top_k = 2, .tokens = {2, 0}});
  make_multipliers(scenario);
  set_ids(scenario, 0, {0, -1, 3, 2});
  const float gates[] = {0.5f, 0.5f, 0.25f, 0.75f};
  for (int64_t i = 0; i < 4; ++i) scenario.gates[0].put(i, gates[i]);
  scenario.copies[0].fill(8);
  const auto outs = run_on_gpu(scenario, poisoned_gpu());
  for (int64_t j = 0; j < 8; ++j) {
    EXPECT_EQ(outs[0].get(j), 0.5f * 1 * 8);                       // expert 0 alone
    EXPECT_EQ(outs[0].get(8 + j), 0.25f * 4 * 8 + 0.75f * 3 * 8);  // experts 3 and 2
  }
}

TEST_F(GpuCases, D4_3_IdsOfBothWidthsGiveTheSame) {
  Random random(12);
  Scenario scenario =
      make_scenario(random, {.placement = Placement::even(2, 8), .k = 8, .n = 8, .top_k = 2, .tokens = {2, 2}});
  make_multipliers(scenario);
  LayerInputs layer = make_layer_inputs(random, {.placement = Placement::even(2, 8), .top_k = 2, .tokens = {2, 2}});
  std::vector<std::vector<HostTensor>> of_session, of_layer;
  for (const DType width : {DType::kInt32, DType::kInt64}) {
    for (size_t rank = 0; rank < 2; ++rank) {
      scenario.ids[rank] = HostTensor(width, {2, 2}, {5, 6, 7, 0});
      layer.ids[rank] = HostTensor(width, {2, 2}, {5, 6, 7, 0});
    }
    of_session.push_back(run_on_gpu(scenario, poisoned_gpu()));
    EXPECT_TRUE(close_to_fp64(of_session.back(), scenario));
    of_layer.push_back(GpuLayerWorld(layer, poisoned_gpu()).run(layer));
    EXPECT_TRUE(close_to_fp64(of_layer.back(), layer));
  }
  EXPECT_TRUE(same_bits(of_session[0], of_session[1]));
  EXPECT_TRUE(same_bits(of_layer[0], of_layer[1]));
}

TEST_F(GpuCases, D4_5_ColumnsOfWiderIdsAreReadByTheirStride) {
  Random random(13);
  const Scenario scenario = make_scenario(random, {.placement = Placement::even(2, 8), .top_k = 2, .tokens = {4, 4}});
  const auto expected = run_on_gpu(scenario, {});
  GpuSessionWorld world(scenario, poisoned_gpu());
  const GpuCall call = world.make_call(scenario);
  std::vector<DeviceTensor> wide_ids, wide_gates;
  std::array<int64_t, 2> shape{4, 2}, strides{8, 1};
  for (size_t rank = 0; rank < 2; ++rank) {
    HostTensor ids(scenario.ids[rank].dtype(), {4, 8}), gates(DType::kFloat32, {4, 8});
    ids.fill(1);  // legal, but another routing
    gates.poison();
    for (int64_t i = 0; i < 8; ++i) {
      ids.put(i / 2 * 8 + i % 2, scenario.ids[rank].get_id(i));
      gates.put(i / 2 * 8 + i % 2, scenario.gates[rank].get(i));
    }
    wide_ids.emplace_back(ids);
    wide_gates.emplace_back(gates);
  }
  for (int32_t rank = 0; rank < 2; ++rank) {
    const auto r = static_cast<size_t>(rank);
    for (DeviceTensor* tensor : {&wide_ids[r], &wide_gates[r]}) {
      tensor->dl().shape = shape.data();
      tensor->dl().strides = strides.data();
    }
    RunArgs args = world.args(call, rank);
    args.topk_ids = wide_ids[r].arg(true);
    args.topk_weights = wide_gates[r].arg(true);
    world.session(rank).run(call.plans[r], args);
  }
  world.synchronize_all();
  EXPECT_TRUE(same_bits(GpuSessionWorld::outs(call), expected));
}

// Kind 6: SMs, streams and other people's kernels.

TEST_F(GpuCases, D6_1_SmsAreThoseOfTheDeviceOrThoseAsked) {
  Random random(14);
  const Scenario scenario =
      make_scenario(random, {.placement = Placement::even(1, 4), .k = 64, .n = 264, .top_k = 2, .tokens = {200}});
  const int32_t there = cuda_devices().at(0).sms;
  for (const int32_t sms : {78, 108, 132, 148}) {
    GpuSetup setup = poisoned_gpu();
    setup.cuda[0].sms = sms;
    setup.cuda[0].comm_sms = 8;
    if (sms > there) {
      EXPECT_THAT(message_of<InvalidArgument>([&] { GpuSessionWorld(scenario, setup); }),
                  Says(std::to_string(sms), std::to_string(there)));
      continue;
    }
    GpuSessionWorld world(scenario, setup);
    EXPECT_THAT(world.session(0).repr(),
                Says("sms=" + std::to_string(sms) + " of " + std::to_string(there), "comm_sms=8"));
    EXPECT_TRUE(close_to_fp64(world.run(scenario), scenario));
  }
  GpuSessionWorld world(scenario, {});
  EXPECT_THAT(world.session(0).repr(), Says("sms=" + std::to_string(there) + " of " + std::to_string(there)));
}

TEST_F(GpuCases, D6_2_NoOrderOfTheTwoKernelsHangs) {
  // All SMs are given away; every fifth call finds 16 of them taken for 5 ms. Which kernel gets its SMs first is
  // chance.
  testing::load_busy_kernels();
  Random random(15);
  const Scenario scenario =
      make_scenario(random, {.placement = Placement::even(2, 4), .k = 64, .n = 264, .top_k = 2, .tokens = {150, 130}});
  GpuSetup setup;
  setup.cuda[0].sms = cuda_devices().at(0).sms / 2;
  setup.cuda[0].comm_sms = 8;
  const auto expected = run_on_gpu(scenario, setup, RunMode::kSerial);
  GpuSessionWorld world(scenario, setup);
  GpuCall call = world.make_call(scenario);
  CudaStream other;
  for (int number = 0; number < 1000; ++number) {
    if (number % 5 == 0) testing::keep_busy(16, 5'000'000, other.stream);
    const auto first = static_cast<int32_t>(random.between(0, 1));
    world.start(first, call);
    world.start(1 - first, call);
    if (number % 50 == 49) {
      world.synchronize_all();
      ASSERT_TRUE(same_bits(GpuSessionWorld::outs(call), expected)) << "call " << number;
      for (DeviceTensor& out : call.outs) out.poison();
    }
  }
  cuda_ok(cudaStreamSynchronize(other.stream), "cudaStreamSynchronize");
}

TEST_F(GpuCases, D6_3_AKernelThatHoldsFourSmsOnlyDelays) {
  testing::load_busy_kernels();
  Random random(16);
  const Scenario scenario =
      make_scenario(random, {.placement = Placement::even(2, 4), .k = 64, .n = 264, .top_k = 2, .tokens = {150, 130}});
  GpuSessionWorld world(scenario, poisoned_gpu());
  const auto expected = run_on_gpu(scenario, {}, RunMode::kSerial);
  GpuCall call = world.make_call(scenario);
  CudaStream other;
  cudaEvent_t end = nullptr;
  cuda_ok(cudaEventCreateWithFlags(&end, cudaEventDisableTiming), "cudaEventCreate");
  for (int i = 0; i < 40; ++i) testing::keep_busy(4, testing::kLongestBusyNs, other.stream);  // 2 s
  cuda_ok(cudaEventRecord(end, other.stream), "cudaEventRecord");
  for (int number = 0; number < 20; ++number) {
    world.start_all(call);
    world.synchronize_all();
    ASSERT_TRUE(same_bits(GpuSessionWorld::outs(call), expected)) << "call " << number;
    for (DeviceTensor& out : call.outs) out.poison();
  }
  EXPECT_EQ(cudaEventQuery(end), cudaErrorNotReady);  // the calls did not wait for it
  (void)cudaGetLastError();                           // which that answer is taken for
  cuda_ok(cudaStreamSynchronize(other.stream), "cudaStreamSynchronize");
  (void)cudaEventDestroy(end);
}

TEST_F(GpuCases, D6_10_NoVariableOfTheDriverIsSet) {
  const auto value = [](const char* name) {
    const char* text = std::getenv(name);
    return text == nullptr ? std::string("unset") : std::string(text);
  };
  constexpr std::array kVariables = {"CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_LAUNCH_BLOCKING", "CUDA_MODULE_LOADING",
                                     "CUDA_VISIBLE_DEVICES"};
  std::vector<std::string> before;
  for (const char* variable : kVariables) before.push_back(value(variable));
  Random random(17);
  const Scenario scenario = make_scenario(random, {.placement = Placement::even(2, 4), .top_k = 2, .tokens = {9, 8}});
  run_on_gpu(scenario, {});
  for (size_t i = 0; i < kVariables.size(); ++i) EXPECT_EQ(value(kVariables[i]), before[i]) << kVariables[i];
}

// Kind 8: order in memory.

TEST_F(GpuCases, D8_3_D8_4_NoTileIsShippedBeforeItIsStored) {
  // 10,240 tiles of a GEMM that does nothing but store, into rows that were NaN before.
  Random random(18);
  Scenario scenario = make_scenario(
      random, {.placement = Placement::even(2, 4), .k = 8, .n = 2048, .top_k = 1, .tokens = {4096, 4096}});
  for (int32_t rank = 0; rank < 2; ++rank) {
    for (int64_t i = 0; i < 4096; ++i) scenario.ids[static_cast<size_t>(rank)].put(i, 2 * (1 - rank) + i % 2);
  }
  for (const GpuTile& tile : testing::gpu_tiles()) {
    GpuSetup setup = tiles_of(tile);
    const auto expected = run_on_gpu(scenario, setup, RunMode::kSerial);
    ASSERT_TRUE(close_to_fp64(expected, scenario)) << tile;
    setup.cuda[0].comm_sms = 16;  // shippers that are quicker than the GEMM
    GpuSessionWorld world(scenario, setup);
    const GpuCall call = world.make_call(scenario);
    int64_t tiles = 0;
    while (tiles < 10'000) {
      world.start_all(call);
      world.synchronize_all();
      ASSERT_TRUE(same_bits(GpuSessionWorld::outs(call), expected)) << tile;
      tiles += call.plans[0].tiles() + call.plans[1].tiles();
    }
  }
}

// Kind 9: sums.

TEST_F(GpuCases, D9_1_SumsAreOneRoundingFromTheirFp64Value) {
  // Each row picks a column of the weights, so that the experts' outputs are known bfloat16 values.
  constexpr int64_t kTokens = 256, kSlots = 8, kWidth = 4096, kInner = 16;
  Random random(19);
  Scenario scenario = make_scenario(
      random,
      {.placement = Placement::even(2, 8), .k = kInner, .n = kWidth, .top_k = kSlots, .tokens = {kTokens, kTokens}});
  route(scenario, [](int64_t i) { return (i * 5 + i / 7) % 8; });
  for (HostTensor& copies : scenario.copies) {
    copies.fill(0);
    for (int64_t copy = 0; copy < kTokens * kSlots; ++copy) copies.put(copy * kInner + copy % kInner, 1);
  }
  const auto outs = run_on_gpu(scenario, poisoned_gpu());
  for (int32_t rank = 0; rank < 2; ++rank) {
    const auto r = static_cast<size_t>(rank);
    for (int64_t token = 0; token < kTokens; ++token) {
      for (int64_t j = 0; j < kWidth; j += 3) {
        double sum = 0, magnitude = 0;
        for (int64_t copy = token * kSlots; copy < (token + 1) * kSlots; ++copy) {
          const auto expert = static_cast<int32_t>(scenario.ids[r].get_id(copy));
          const int32_t host = scenario.placement.rank_of(expert);
          const int64_t local = expert - scenario.placement.begin(host);
          const double term =
              double{scenario.gates[r].get(copy)} *
              double{scenario.weights[static_cast<size_t>(host)].get((local * kWidth + j) * kInner + copy % kInner)};
          sum += term;
          magnitude += std::abs(term);
        }
        // Half a step of bfloat16, and what eight additions in float32 may lose.
        const double half_step = sum == 0 ? 0 : std::ldexp(1.0, std::ilogb(sum) - 8);
        ASSERT_NEAR(outs[r].get(token * kWidth + j), sum, half_step * 1.001 + 1e-6 * magnitude)
            << "rank " << rank << ", token " << token << ", column " << j;
      }
    }
  }
}

TEST_F(GpuCases, D9_4_SkippedSlotsAreNotRead) {
  Random random(20);
  Scenario scenario =
      make_scenario(random, {.placement = Placement::even(2, 4), .k = 8, .n = 8, .top_k = 2, .tokens = {1, 1}});
  make_multipliers(scenario);
  for (const int64_t expert : {0, 2}) {  // of its own rank and of the other
    set_ids(scenario, 0, {expert, -1});
    set_ids(scenario, 1, {expert, -1});
    for (size_t rank = 0; rank < 2; ++rank) {
      scenario.copies[rank].fill(2);
      scenario.gates[rank].put(0, 1);
      scenario.gates[rank].put(1, rank == 0 ? 0.0f : std::nanf(""));  // not even its weight is
    }
    const auto outs = run_on_gpu(scenario, poisoned_gpu());  // rows to come are NaN
    for (const HostTensor& out : outs) {
      for (int64_t j = 0; j < 8; ++j) EXPECT_EQ(out.get(j), 2.0f * static_cast<float>(expert + 1));
    }
  }
}

TEST_F(GpuCases, D9_5_PaddingMayHoldAnythingAndIsNotSent) {
  Random random(21);
  Scenario scenario = make_scenario(
      random, {.placement = Placement::from_begins({0, 2, 2}), .k = 72, .n = 136, .top_k = 1, .tokens = {0, 195}});
  route(scenario, [](int64_t i) { return i < 130 ? 0 : 1; });
  for (const Layout layout : {Layout::kOwnerAligned, Layout::kCompact}) {
    GpuSetup setup = poisoned_gpu();
    setup.plan.layout = layout;
    GpuSessionWorld world(scenario, setup);
    GpuCall call = world.make_call(scenario);
    ASSERT_EQ(call.plans[0]->rows, 256 + 128);
    int64_t sent = 0;
    for (const Segment& segment : call.plans[0]->segments) sent += segment.row_count;
    EXPECT_EQ(sent, 195);
    std::vector<std::vector<HostTensor>> results;
    for (const float padding : {std::nanf(""), 3e38f, 0.0f}) {
      HostTensor rows(DType::kBFloat16, {call.plans[0]->rows, 72});
      fill_rows(scenario, call.plans[0], rows);
      for (int64_t row = 0; row < call.plans[0]->rows; ++row) {
        if (!std::isnan(rows.get(row * 72))) continue;
        for (int64_t i = 0; i < 72; ++i) rows.put(row * 72 + i, padding);
      }
      call.rows[0].upload(rows);
      for (DeviceTensor& out : call.outs) out.poison();
      world.start_all(call);
      world.synchronize_all();
      results.push_back(GpuSessionWorld::outs(call));
      EXPECT_TRUE(close_to_fp64(results.back(), scenario)) << padding;
      EXPECT_TRUE(same_bits(results.back(), results.front())) << padding;
    }
  }
}

TEST_F(GpuCases, D9_7_ATokenWithoutACopyIsExactlyZero) {
  Random random(22);
  Scenario scenario =
      make_scenario(random, {.placement = Placement::even(2, 4), .n = 264, .top_k = 2, .tokens = {4, 4}});
  for (int32_t rank = 0; rank < 2; ++rank) set_ids(scenario, rank, {0, 1, 3, 2, -1, -1, 1, -1});
  GpuSetup setup;  // without poison: nothing but the call itself writes the output
  GpuSessionWorld world(scenario, setup);
  GpuCall call = world.make_call(scenario);
  HostTensor before(DType::kBFloat16, {4, 264});
  before.fill(7);
  for (DeviceTensor& out : call.outs) out.upload(before);
  world.start_all(call);
  world.synchronize_all();
  const auto outs = GpuSessionWorld::outs(call);
  EXPECT_TRUE(close_to_fp64(outs, scenario));
  for (const HostTensor& out : outs) {
    for (int64_t j = 0; j < 264; ++j) ASSERT_EQ(out.get(2 * 264 + j), 0.0f) << "column " << j;
  }
}

}  // namespace
}  // namespace tileoverlap
