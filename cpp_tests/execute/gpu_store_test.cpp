// The GEMM stores rows in the memory of their owners itself: the bits of the serial order, whoever else ships them.

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "support/compare.hpp"
#include "support/gpu_checks.hpp"
#include "support/gpu_world.hpp"
#include "support/messages.hpp"
#include "tileoverlap/transport/mapped.hpp"

namespace tileoverlap {
namespace {

using testing::failure_of;
using testing::GpuCall;
using testing::GpuSessionWorld;
using testing::GpuSetup;
using testing::GpuTile;
using testing::make_scenario;
using testing::Random;
using testing::run_on_gpu;
using testing::same_bits;
using testing::Says;
using testing::Scenario;

GpuSetup storing(const PlanOptions& plan = GpuSetup().plan) {
  GpuSetup setup;
  setup.plan = plan;
  setup.cuda = {{.transfer = Transfer::kStore, .faults = {.poison = true}}};
  return setup;
}

class GpuStore : public ::testing::Test {
 protected:
  void SetUp() override {
    TILEOVERLAP_NEEDS_GPU();
    if (!testing::gpu_stores_to_owners()) GTEST_SKIP() << "needs a GPU of compute capability 9.0";
  }
};

// Runs of 1 to 129 rows: boxes of every height, at every place in a tile, and columns that fill no tile.
TEST_F(GpuStore, CutsRunsOfAnyLength) {
  Random random(501);
  for (const GpuTile& tile : testing::gpu_tiles()) {
    for (const DType dtype : testing::kGpuTypes) {
      for (const int64_t tokens : {1, 3, 31, 64, 85, 129}) {
        const Scenario scenario = make_scenario(random, {.placement = Placement::from_begins({0, 2, 2, 5}),
                                                         .dtype = dtype,
                                                         .k = 72,
                                                         .n = 392,
                                                         .top_k = 3,
                                                         .tokens = {tokens, random.between(0, tokens), tokens}});
        GpuSetup plain;
        plain.plan = tile.plan();
        const auto serial = run_on_gpu(scenario, plain, RunMode::kSerial);
        for (const Layout layout : {Layout::kCompact, Layout::kOwnerAligned}) {
          GpuSetup setup = storing(tile.plan());
          setup.plan.layout = layout;
          ASSERT_TRUE(same_bits(run_on_gpu(scenario, setup), serial)) << tile << ", " << tokens << " tokens";
        }
      }
    }
  }
}

TEST_F(GpuStore, OfRandomWorldsGivesTheSerialBits) {
  Random random(502);
  const auto tiles = testing::gpu_tiles();
  for (int round = 0; round < 80; ++round) {
    const Scenario scenario = make_scenario(random, testing::random_gpu_shapes(random));
    const GpuTile tile = any_of(random, tiles);
    GpuSetup plain;
    plain.plan = tile.plan();
    const auto serial = run_on_gpu(scenario, plain, RunMode::kSerial);
    ASSERT_TRUE(close_to_fp64(serial, scenario)) << "round " << round;
    GpuSetup setup = storing(random_gpu_plan(random, tile));
    // Each rank for itself.
    setup.cuda.resize(static_cast<size_t>(scenario.world()), setup.cuda[0]);
    for (CudaOptions& options : setup.cuda) {
      if (random.chance(40)) options.transfer = Transfer::kShip;
    }
    ASSERT_TRUE(same_bits(run_on_gpu(scenario, setup), serial)) << "round " << round << ", " << repr(setup.plan);
  }
}

TEST_F(GpuStore, CallAfterCallWithOtherTokensAndModes) {
  Random random(503);
  Scenario drawn = make_scenario(
      random,
      {.placement = Placement::from_begins({0, 3, 4, 7}), .k = 72, .n = 264, .top_k = 3, .tokens = {90, 90, 90}});
  GpuSessionWorld world(drawn, storing()), serial(drawn, {});
  GpuCall call = world.make_call(drawn);
  for (int round = 0; round < 40; ++round) {
    std::vector<int64_t> tokens;
    for (int rank = 0; rank < 3; ++rank) tokens.push_back(random.chance(20) ? 0 : random.between(1, 90));
    draw_tokens(random, drawn, tokens);
    world.refill(drawn, call);
    world.start_all(call, round % 5 == 4 ? RunMode::kSerial : RunMode::kOverlapped);
    world.synchronize_all();
    ASSERT_TRUE(same_bits(GpuSessionWorld::outs(call), serial.run(drawn, RunMode::kSerial))) << "round " << round;
  }
}

TEST_F(GpuStore, LayersOfAllKindsGiveTheSerialBits) {
  Random random(504);
  for (const ExpertKind expert : {ExpertKind::kSingle, ExpertKind::kGelu, ExpertKind::kSiluGate}) {
    testing::LayerInputs inputs = make_layer_inputs(random, {.placement = Placement::from_begins({0, 3, 3, 6, 8}),
                                                             .expert = expert,
                                                             .hidden = 136,
                                                             .inner = 72,
                                                             .top_k = 2,
                                                             .tokens = {70, 0, 129, 5}});
    testing::GpuLayerWorld world(inputs, storing()), serial(inputs, {});
    for (int round = 0; round < 10; ++round) {
      draw_layer_tokens(random, inputs, {random.between(0, 70), 0, random.between(0, 129), 5});
      const auto outs = world.run(inputs);
      ASSERT_TRUE(same_bits(outs, serial.run(inputs, RunMode::kSerial))) << name(expert) << ", round " << round;
    }
    ASSERT_TRUE(close_to_fp64(world.run(inputs), inputs)) << name(expert);
  }
}

// Rows land with their tiles, so nobody ships any.
TEST_F(GpuStore, ATimelineHasNoConsumer) {
  Random random(505);
  const Scenario scenario =
      make_scenario(random, {.placement = Placement::even(2, 4), .k = 64, .n = 256, .top_k = 2, .tokens = {300, 300}});
  GpuSetup setup = storing();
  setup.record_timeline = true;
  GpuSessionWorld world(scenario, setup);
  const GpuCall call = world.make_call(scenario);
  const auto count = [&](Span span) {
    const Timeline timeline = world.session(0).timeline();
    return std::count_if(timeline.events.begin(), timeline.events.end(),
                         [&](const TimelineEvent& event) { return event.span == span; });
  };
  for (int round = 0; round < 2; ++round) {
    world.start_all(call, RunMode::kSerial);
    world.synchronize_all();
    EXPECT_GT(count(Span::kCopy), 0);
    world.start_all(call);
    world.synchronize_all();
    EXPECT_EQ(count(Span::kTile), call.plans[0].tiles());
    EXPECT_EQ(count(Span::kCopy), 0);
    EXPECT_EQ(count(Span::kReduce), 1);
  }
}

constexpr int64_t kLimit = 300'000'000;

TEST_F(GpuStore, AWithheldBandIsMissedByItsOwners) {
  Random random(506);
  Scenario scenario =
      make_scenario(random, {.placement = Placement::from_begins({0, 1, 1}), .top_k = 1, .tokens = {0, 6}});
  set_all_ids(scenario, 0);
  GpuSetup setup = storing();
  setup.timeout_ns = kLimit;
  setup.cuda[0].faults.withhold_band = 0;
  GpuSessionWorld world(scenario, setup);
  const GpuCall call = world.make_call(scenario);
  world.start_all(call);
  const WaitTimeout error = failure_of(world.session(1));
  EXPECT_EQ(error.record().what, WaitFor::kArrival);
  EXPECT_EQ(error.record().peer, 0);
  EXPECT_THAT(error.what(), Says("rank 1", "rank 0", "epoch 1", "0 of "));
  EXPECT_TRUE(all_nan(GpuSessionWorld::outs(call)));
}

TEST_F(GpuStore, NothingIsStoredAtAnOwnerWhoHasNotReadTheCallBefore) {
  // Rank 0 only sends: its first call needs nobody, its second may not overwrite what rank 1 has not read.
  Random random(507);
  Scenario scenario =
      make_scenario(random, {.placement = Placement::from_begins({0, 1, 1}), .n = 4096, .top_k = 1, .tokens = {0, 6}});
  set_all_ids(scenario, 0);
  constexpr int64_t kRegionBytes = 1 << 20;
  std::vector<testing::DeviceTensor> regions;
  std::vector<void*> bases;
  for (int rank = 0; rank < 2; ++rank) {
    regions.emplace_back(testing::HostTensor(DType::kInt32, {kRegionBytes / 4}));  // zeros
    bases.push_back(regions.back().data());
  }
  GpuSetup setup = storing();
  setup.cuda[0].faults.poison = false;
  setup.timeout_ns = kLimit;
  for (int32_t rank = 0; rank < 2; ++rank) {
    setup.transports.push_back(make_mapped_transport({.rank = rank,
                                                      .world = 2,
                                                      .device = {kDLCUDA, 0},
                                                      .bases = bases,
                                                      .bytes = kRegionBytes,
                                                      .ranks_on_device = 2}));
  }
  GpuSessionWorld world(scenario, setup);
  GpuCall call = world.make_call(scenario);
  world.start(0, call);
  world.session(0).synchronize();
  const testing::HostTensor before = regions[1].download();
  call.rows[0].poison();  // other rows, so that the second call would be seen
  world.start(0, call);
  const WaitTimeout error = failure_of(world.session(0));
  EXPECT_EQ(error.record().what, WaitFor::kCredit);
  EXPECT_EQ(error.record().peer, 1);
  EXPECT_THAT(error.what(), Says("rank 0", "rank 1", "credit", "epoch 2", "saw epoch 0", "needed 1"));
  const testing::HostTensor after = regions[1].download();
  int64_t changed = 0;
  for (int64_t i = 0; i < kRegionBytes / 4; ++i) changed += before.get_id(i) != after.get_id(i) ? 1 : 0;
  EXPECT_GT(changed, 0) << "rank 1 is told";
  EXPECT_LT(changed, 100) << "more than a message was stored";
}

}  // namespace
}  // namespace tileoverlap
