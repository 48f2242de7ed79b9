// One routing, many ways to run it: none may change a bit.

#include <gtest/gtest.h>

#include <vector>

#include "support/compare.hpp"
#include "support/session_world.hpp"

namespace tileoverlap {
namespace {

using testing::exact_results;
using testing::make_scenario;
using testing::Random;
using testing::run_once;
using testing::same_bits;
using testing::Scenario;
using testing::WorldSetup;

class SameBits : public ::testing::TestWithParam<DType> {
 protected:
  // Three ranks, uneven experts, sums long enough that another order would show, sizes that no tile divides.
  SameBits() {
    Random random(201);
    scenario_ = make_scenario(random, {.placement = Placement::from_begins({0, 3, 4, 7}),
                                       .dtype = GetParam(),
                                       .k = 152,
                                       .n = 56,
                                       .top_k = 4,
                                       .tokens = {37, 20, 51}});
    expected_ = exact_results(scenario_);
  }

  void expect_same(const WorldSetup& setup, RunMode mode = RunMode::kOverlapped) {
    EXPECT_TRUE(same_bits(run_once(scenario_, setup, mode), expected_)) << repr(setup.plan);
  }

  Scenario scenario_;
  std::vector<testing::HostTensor> expected_;
};
INSTANTIATE_TEST_SUITE_P(Types, SameBits, ::testing::Values(DType::kFloat32, DType::kBFloat16, DType::kFloat16),
                         [](const auto& test) { return std::string(name(test.param)); });

TEST_P(SameBits, WhateverTheOrderOfAdditionWouldChange) {
  // The sums really depend on order: backwards they differ, so equality below says something.
  float forwards = 0, backwards = 0;
  const auto& row = scenario_.copies[0];
  const auto& weights = scenario_.weights[0];
  bool differs = false;
  for (int64_t column = 0; column < scenario_.n && !differs; ++column) {
    forwards = backwards = 0;
    for (int64_t i = 0; i < scenario_.k; ++i) {
      forwards += row.get(i) * weights.get(column * scenario_.k + i);
      const int64_t j = scenario_.k - 1 - i;
      backwards += row.get(j) * weights.get(column * scenario_.k + j);
    }
    differs = forwards != backwards;
  }
  EXPECT_TRUE(differs);
}

TEST_P(SameBits, ForEveryNumberOfThreads) {
  for (int32_t producers = 1; producers <= 3; ++producers) {
    for (int32_t consumers = 1; consumers <= 3; ++consumers) {
      WorldSetup setup;
      setup.cpu = {{.producer_threads = producers, .consumer_threads = consumers}};
      expect_same(setup);
    }
  }
}

TEST_P(SameBits, WhenEachRankHasOtherThreads) {
  WorldSetup setup;
  setup.cpu = {{.producer_threads = 1, .consumer_threads = 3},
               {.producer_threads = 3, .consumer_threads = 1},
               {.producer_threads = 2, .consumer_threads = 2}};
  expect_same(setup);
}

TEST_P(SameBits, ForBothLayoutsAndEveryTile) {
  for (const Layout layout : {Layout::kOwnerAligned, Layout::kCompact}) {
    for (const int32_t tile_m : {1, 3, 8, 64}) {
      for (const int32_t tile_n : {1, 16, 40, 256}) {
        expect_same({.plan = {.tile_m = tile_m, .tile_n = tile_n, .layout = layout}});
      }
    }
  }
}

TEST_P(SameBits, ForEverySegmentAndGroup) {
  for (const Layout layout : {Layout::kOwnerAligned, Layout::kCompact}) {
    for (const int32_t bands_per_segment : {1, 2, 3, 100}) {
      for (const int32_t group : {1, 2, 8}) {
        expect_same(
            {.plan = {
                 .tile_m = 2, .tile_n = 24, .layout = layout, .bands_per_segment = bands_per_segment, .group = group}});
      }
    }
  }
}

TEST_P(SameBits, SerialAndOverlapped) {
  for (const Layout layout : {Layout::kOwnerAligned, Layout::kCompact}) {
    const WorldSetup setup{.plan = {.tile_m = 4, .tile_n = 24, .layout = layout, .bands_per_segment = 2}};
    expect_same(setup, RunMode::kSerial);
    expect_same(setup, RunMode::kOverlapped);
  }
}

TEST_P(SameBits, WhenModesDifferBetweenRanks) {
  testing::SessionWorld world(scenario_, {});
  const auto call = world.make_call(scenario_);
  world.start(0, scenario_, call, RunMode::kSerial);
  world.start(1, scenario_, call, RunMode::kOverlapped);
  world.start(2, scenario_, call, RunMode::kSerial);
  world.synchronize_all();
  EXPECT_TRUE(same_bits(call.outs, expected_));
}

TEST_P(SameBits, WhenSegmentsAreCutDifferentlyBetweenRanks) {
  // Arrival is counted in bytes, so that no rank needs to know how another one cuts.
  WorldSetup setup{.plan = {.tile_m = 2, .tile_n = 24}};
  testing::SessionWorld world(scenario_, setup);
  auto call = world.make_call(scenario_);
  const RouteCounts counts = counts_of(scenario_);
  for (int32_t rank = 0; rank < 3; ++rank) {
    PlanOptions options = setup.plan;
    options.bands_per_segment = rank + 1;
    options.group = 3 - rank;
    call.plans[static_cast<size_t>(rank)] = make_plan(scenario_.placement, rank, counts, scenario_.n, options);
  }
  world.start_all(scenario_, call);
  world.synchronize_all();
  EXPECT_TRUE(same_bits(call.outs, expected_));
}

TEST_P(SameBits, UnderShufflesDelaysAndPoison) {
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    WorldSetup setup{.plan = {.tile_m = 4, .tile_n = 24, .bands_per_segment = 2}};
    setup.cpu = {{.producer_threads = 2,
                  .consumer_threads = 2,
                  .faults = {.shuffle_seed = seed, .max_delay_us = 50, .poison = true}}};
    expect_same(setup);
  }
}

TEST_P(SameBits, CallAfterCall) {
  WorldSetup setup;
  setup.cpu = {{.producer_threads = 2, .consumer_threads = 2, .faults = {.shuffle_seed = 7, .poison = true}}};
  testing::SessionWorld world(scenario_, setup);
  for (int call = 0; call < 20; ++call) ASSERT_TRUE(same_bits(world.run(scenario_), expected_)) << "call " << call;
}

}  // namespace
}  // namespace tileoverlap
