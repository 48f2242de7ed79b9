// One routing, many ways to run it on a GPU: none may change a bit, and the bits are close to the references'.

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "support/compare.hpp"
#include "support/gpu_checks.hpp"
#include "support/gpu_world.hpp"
#include "tileoverlap/plan/check.hpp"

namespace tileoverlap {
namespace {

using testing::disordered;
using testing::GpuCall;
using testing::GpuSessionWorld;
using testing::GpuSetup;
using testing::GpuTile;
using testing::HostTensor;
using testing::make_scenario;
using testing::Random;
using testing::run_on_gpu;
using testing::same_bits;
using testing::Scenario;

// Three ranks, uneven experts, several bands an expert, sizes that no tile divides.
Scenario three_ranks(DType dtype) {
  Random random(201);
  return make_scenario(random, {.placement = Placement::from_begins({0, 3, 4, 7}),
                                .dtype = dtype,
                                .k = 264,
                                .n = 392,
                                .top_k = 4,
                                .tokens = {137, 60, 351}});
}

class GpuSameBits : public ::testing::TestWithParam<std::tuple<DType, GpuTile>> {
 protected:
  struct Case {
    Scenario scenario;
    std::vector<HostTensor> serial;
  };

  // Made once for all tests of one type and tile: the reference takes a second on the host.
  void SetUp() override {
    TILEOVERLAP_NEEDS_GPU();
    if (!testing::has_gpu_tile(tile())) GTEST_SKIP() << "no kernel for tiles of " << tile();
    static std::map<std::pair<DType, std::string>, std::unique_ptr<Case>> cases;
    const DType dtype = std::get<0>(GetParam());
    std::unique_ptr<Case>& made = cases[{dtype, tile().text()}];
    if (made == nullptr) {
      made = std::make_unique<Case>();
      made->scenario = three_ranks(dtype);
      made->serial = run_on_gpu(made->scenario, setup(), RunMode::kSerial);
      ASSERT_TRUE(close_to_fp64(made->serial, made->scenario));
    }
    case_ = made.get();
  }

  const GpuTile& tile() const { return std::get<1>(GetParam()); }
  const Scenario& scenario() const { return case_->scenario; }
  const std::vector<HostTensor>& expected() const { return case_->serial; }
  GpuSetup setup() const {
    GpuSetup setup;
    setup.plan = tile().plan();
    return setup;
  }

  void expect_same(const GpuSetup& setup, RunMode mode = RunMode::kOverlapped) {
    EXPECT_TRUE(same_bits(run_on_gpu(scenario(), setup, mode), expected())) << repr(setup.plan);
  }

 private:
  const Case* case_ = nullptr;
};
INSTANTIATE_TEST_SUITE_P(Tiles, GpuSameBits,
                         ::testing::Combine(::testing::ValuesIn(testing::kGpuTypes),
                                            ::testing::ValuesIn(testing::kGpuTiles)),
                         [](const auto& test) {
                           return std::string(name(std::get<0>(test.param))) + "_" + std::get<1>(test.param).text();
                         });

TEST_P(GpuSameBits, AreCloseToTheCpuExecutors) {
  testing::WorldSetup cpu{.plan = tile().plan()};
  cpu.cpu = {{.producer_threads = 2}};
  EXPECT_TRUE(close_to_cpu(expected(), testing::run_once(scenario(), cpu)));
}

TEST_P(GpuSameBits, SerialAndOverlapped) {
  for (const Layout layout : {Layout::kOwnerAligned, Layout::kCompact}) {
    GpuSetup changed = setup();
    changed.plan.layout = layout;
    expect_same(changed, RunMode::kSerial);
    expect_same(changed, RunMode::kOverlapped);
  }
}

TEST_P(GpuSameBits, ForEveryNumberOfSms) {
  for (const int32_t comm_sms : {1, 2, 7, 20}) {
    for (const int32_t sms : {0, comm_sms + 1}) {
      GpuSetup changed = setup();
      changed.cuda = {{.sms = sms, .comm_sms = comm_sms}};
      expect_same(changed);
    }
  }
}

TEST_P(GpuSameBits, WhenEachRankHasOtherSms) {
  GpuSetup changed = setup();
  changed.cuda = {{.sms = 3, .comm_sms = 2}, {.sms = 40, .comm_sms = 1}, {.sms = 20, .comm_sms = 10}};
  expect_same(changed);
}

TEST_P(GpuSameBits, ForEverySegmentAndGroup) {
  for (const Layout layout : {Layout::kOwnerAligned, Layout::kCompact}) {
    for (const int32_t bands_per_segment : {1, 3, 100}) {
      for (const int32_t group : {1, 2, 8}) {
        GpuSetup changed = setup();
        changed.plan.layout = layout;
        changed.plan.bands_per_segment = bands_per_segment;
        changed.plan.group = group;
        expect_same(changed);
      }
    }
  }
}

TEST_P(GpuSameBits, WhenModesDifferBetweenRanks) {
  GpuSessionWorld world(scenario(), setup());
  const GpuCall call = world.make_call(scenario());
  world.start(0, call, RunMode::kSerial);
  world.start(1, call, RunMode::kOverlapped);
  world.start(2, call, RunMode::kSerial);
  world.synchronize_all();
  EXPECT_TRUE(same_bits(GpuSessionWorld::outs(call), expected()));
}

TEST_P(GpuSameBits, WhenSegmentsAreCutDifferentlyBetweenRanks) {
  GpuSessionWorld world(scenario(), setup());
  GpuCall call = world.make_call(scenario());
  const RouteCounts counts = counts_of(scenario());
  for (int32_t rank = 0; rank < 3; ++rank) {
    PlanOptions options = setup().plan;
    options.bands_per_segment = rank + 1;
    options.group = 3 - rank;
    call.plans[static_cast<size_t>(rank)] = make_plan(scenario().placement, rank, counts, scenario().n, options);
  }
  world.start_all(call);
  world.synchronize_all();
  EXPECT_TRUE(same_bits(GpuSessionWorld::outs(call), expected()));
}

TEST_P(GpuSameBits, UnderShufflesDelaysAndPoison) {
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    GpuSetup changed = disordered(seed, seed % 2 == 0 ? 100 : 0);
    changed.plan = setup().plan;
    changed.plan.bands_per_segment = 2;
    changed.cuda[0].comm_sms = static_cast<int32_t>(seed);
    expect_same(changed);
  }
}

TEST_P(GpuSameBits, CallAfterCall) {
  GpuSetup changed = disordered(7);
  changed.plan = setup().plan;
  GpuSessionWorld world(scenario(), changed);
  GpuCall call = world.make_call(scenario());
  for (int number = 0; number < 10; ++number) {
    for (testing::DeviceTensor& out : call.outs) out.poison();
    world.start_all(call);
    world.synchronize_all();
    ASSERT_TRUE(same_bits(GpuSessionWorld::outs(call), expected())) << "call " << number;
  }
}

TEST_P(GpuSameBits, WithOtherTokensInEveryCall) {
  Random random(202);
  Scenario drawn = make_scenario(random, {.placement = Placement::from_begins({0, 3, 4, 7}),
                                          .dtype = std::get<0>(GetParam()),
                                          .k = 72,
                                          .n = 136,
                                          .top_k = 3,
                                          .tokens = {90, 90, 90}});
  GpuSetup changed = disordered(8);
  changed.plan = setup().plan;
  GpuSetup plain = setup();
  GpuSessionWorld world(drawn, changed), serial(drawn, plain);
  GpuCall call = world.make_call(drawn);
  for (const std::vector<int64_t>& tokens :
       {std::vector<int64_t>{90, 90, 90}, {1, 0, 90}, {0, 0, 0}, {33, 90, 2}, {90, 1, 64}, {90, 90, 90}}) {
    draw_tokens(random, drawn, tokens);
    world.refill(drawn, call);
    world.start_all(call);
    world.synchronize_all();
    const auto outs = GpuSessionWorld::outs(call);
    ASSERT_TRUE(close_to_fp64(outs, drawn));
    ASSERT_TRUE(same_bits(outs, serial.run(drawn, RunMode::kSerial)));
  }
}

class GpuWorlds : public ::testing::TestWithParam<int32_t> {};
INSTANTIATE_TEST_SUITE_P(Ranks, GpuWorlds, ::testing::Values(1, 2, 3, 4, 8));

TEST_P(GpuWorlds, GiveTheSerialBitsAndAgreeWithBothReferences) {
  TILEOVERLAP_NEEDS_GPU();
  const int32_t ranks = GetParam();
  Random random(203);
  for (const DType dtype : testing::kGpuTypes) {
    std::vector<int64_t> tokens;
    for (int32_t rank = 0; rank < ranks; ++rank) tokens.push_back(random.between(0, 160));
    const Scenario scenario = make_scenario(random, {.placement = Placement::even(ranks, 2 * ranks + 1),
                                                     .dtype = dtype,
                                                     .k = 72,
                                                     .n = 264,
                                                     .top_k = 3,
                                                     .tokens = tokens});
    const auto serial = run_on_gpu(scenario, {}, RunMode::kSerial);
    ASSERT_TRUE(close_to_fp64(serial, scenario));
    ASSERT_TRUE(close_to_cpu(serial, testing::run_once(scenario, {})));
    for (uint64_t seed = 1; seed <= 3; ++seed) {
      ASSERT_TRUE(same_bits(run_on_gpu(scenario, disordered(seed)), serial)) << "seed " << seed;
    }
  }
}

TEST_P(GpuWorlds, AreDrivenByOneThreadInAnyOrderOfRanks) {
  TILEOVERLAP_NEEDS_GPU();
  const int32_t ranks = GetParam();
  Random random(204);
  const Scenario scenario = make_scenario(random, {.placement = Placement::even(ranks, 2 * ranks),
                                                   .k = 24,
                                                   .n = 136,
                                                   .top_k = 2,
                                                   .tokens = std::vector<int64_t>(static_cast<size_t>(ranks), 50)});
  const auto serial = run_on_gpu(scenario, {}, RunMode::kSerial);
  GpuSessionWorld world(scenario, testing::poisoned_gpu());
  const GpuCall call = world.make_call(scenario);
  for (int32_t first = 0; first < ranks; ++first) {
    for (int32_t step = 0; step < ranks; ++step) world.start((first + step) % ranks, call);
  }
  world.synchronize_all();
  EXPECT_TRUE(same_bits(GpuSessionWorld::outs(call), serial));
}

std::string told(const Scenario& scenario, const GpuSetup& setup) {
  return scenario.placement.repr() + ' ' + repr(setup.plan) + ' ' + name(scenario.dtype) +
         " k=" + std::to_string(scenario.k) + " n=" + std::to_string(scenario.n) +
         " top_k=" + std::to_string(scenario.top_k);
}

TEST(GpuRandomWorlds, GiveTheSerialBitsAndStayWithinToleranceOfAnFp64Sum) {
  TILEOVERLAP_NEEDS_GPU();
  Random random(205);
  const auto tiles = testing::gpu_tiles();
  for (int round = 0; round < 60; ++round) {
    const Scenario scenario = make_scenario(random, testing::random_gpu_shapes(random));
    const GpuTile tile = any_of(random, tiles);
    GpuSetup plain;
    plain.plan = tile.plan();
    const auto serial = run_on_gpu(scenario, plain, RunMode::kSerial);
    ASSERT_TRUE(close_to_fp64(serial, scenario)) << "round " << round << ": " << told(scenario, plain);
    for (int way = 0; way < 2; ++way) {
      GpuSetup setup = disordered(random.chance(50) ? random.bits() : 0, random.chance(30) ? 50 : 0);
      setup.plan = random_gpu_plan(random, tile);
      setup.cuda[0].comm_sms = random.between32(0, 6);
      ASSERT_TRUE(same_bits(run_on_gpu(scenario, setup), serial)) << "round " << round << ": " << told(scenario, setup);
    }
  }
}

TEST(GpuRandomWorlds, RunPlansThatCheckPlansAccepts) {
  TILEOVERLAP_NEEDS_GPU();
  Random random(206);
  const auto tiles = testing::gpu_tiles();
  for (int round = 0; round < 10; ++round) {
    const Scenario scenario = make_scenario(random, testing::random_gpu_shapes(random));
    GpuSetup setup = testing::poisoned_gpu();
    setup.plan = random_gpu_plan(random, any_of(random, tiles));
    GpuSessionWorld world(scenario, setup);
    const GpuCall call = world.make_call(scenario);
    ASSERT_TRUE(check_plans(call.plans, counts_of(scenario)).empty()) << told(scenario, setup);
    world.start_all(call);
    world.synchronize_all();
    ASSERT_TRUE(close_to_fp64(GpuSessionWorld::outs(call), scenario)) << told(scenario, setup);
  }
}

}  // namespace
}  // namespace tileoverlap
