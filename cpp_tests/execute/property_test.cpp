// Random worlds: every run equals the plain loop bit for bit and stays within tolerance of an fp64 sum.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "support/build_kind.hpp"
#include "support/compare.hpp"
#include "support/session_world.hpp"
#include "tileoverlap/plan/check.hpp"

namespace tileoverlap {
namespace {

using testing::exact_results;
using testing::make_scenario;
using testing::Random;
using testing::run_once;
using testing::same_bits;
using testing::Scenario;
using testing::WorldSetup;

constexpr int kRounds = testing::kSanitized ? 40 : 150;

WorldSetup random_setup(Random& random) {
  WorldSetup setup{.plan = {.tile_m = random.between32(1, 9),
                            .tile_n = random.between32(1, 40),
                            .layout = random.chance(50) ? Layout::kOwnerAligned : Layout::kCompact,
                            .bands_per_segment = random.between32(1, 4),
                            .group = random.between32(1, 8)}};
  setup.cpu = {{.producer_threads = random.between32(1, 3),
                .consumer_threads = random.between32(1, 3),
                .faults = {.shuffle_seed = random.chance(50) ? random.bits() : 0,
                           .max_delay_us = random.chance(30) ? 20 : 0,
                           .poison = true}}};
  return setup;
}

std::string told(const Scenario& scenario, const WorldSetup& setup) {
  return scenario.placement.repr() + ' ' + repr(setup.plan) + ' ' + name(scenario.dtype) +
         " k=" + std::to_string(scenario.k) + " n=" + std::to_string(scenario.n) +
         " top_k=" + std::to_string(scenario.top_k);
}

TEST(RandomWorlds, GiveTheBitsOfThePlainLoop) {
  Random random(101);
  for (int round = 0; round < kRounds; ++round) {
    const Scenario scenario = make_scenario(random, testing::random_shapes(random));
    const auto expected = exact_results(scenario);
    for (const RunMode mode : {RunMode::kOverlapped, RunMode::kSerial}) {
      const WorldSetup setup = random_setup(random);
      ASSERT_TRUE(same_bits(run_once(scenario, setup, mode), expected))
          << "round " << round << ": " << told(scenario, setup);
    }
  }
}

TEST(RandomWorlds, StayWithinToleranceOfAnFp64Sum) {
  Random random(102);
  for (int round = 0; round < kRounds; ++round) {
    const Scenario scenario = make_scenario(random, testing::random_shapes(random));
    const WorldSetup setup = random_setup(random);
    const auto results = run_once(scenario, setup);
    for (int32_t rank = 0; rank < scenario.world(); ++rank) {
      ASSERT_TRUE(close_to(results[static_cast<size_t>(rank)], fp64_result(scenario, rank)))
          << "rank " << rank << ": " << told(scenario, setup);
    }
  }
}

TEST(RandomWorlds, RunPlansThatCheckPlansAccepts) {
  Random random(103);
  for (int round = 0; round < kRounds; ++round) {
    const Scenario scenario = make_scenario(random, testing::random_shapes(random));
    const WorldSetup setup = random_setup(random);
    testing::SessionWorld world(scenario, setup);
    const auto call = world.make_call(scenario);
    ASSERT_TRUE(check_plans(call.plans, counts_of(scenario)).empty()) << told(scenario, setup);
    world.start_all(scenario, call);
    world.synchronize_all();
    ASSERT_TRUE(same_bits(call.outs, exact_results(scenario))) << told(scenario, setup);
  }
}

}  // namespace
}  // namespace tileoverlap
