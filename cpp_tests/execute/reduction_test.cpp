// The weighted sum: float32, slots in order, nothing read that was not routed.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "support/build_kind.hpp"
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
using testing::SessionWorld;
using testing::WorldSetup;

WorldSetup poisoned(uint64_t shuffle_seed = 0) {
  WorldSetup setup;
  setup.cpu = {
      {.producer_threads = 2, .consumer_threads = 2, .faults = {.shuffle_seed = shuffle_seed, .poison = true}}};
  return setup;
}

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

TEST(Reduction, IsWithinOneRoundingOfTheFp64SumOfTheRoundedRows) {
  Random random(1);
  const int64_t n = 4096;
  const Scenario scenario =
      make_scenario(random, {.placement = Placement::even(2, 8), .k = 8, .n = n, .top_k = 8, .tokens = {256, 0}});
  WorldSetup setup = poisoned();
  setup.plan = {.tile_m = 64, .tile_n = 1024};
  const auto results = run_once(scenario, setup);
  for (int64_t token = 0; token < 256; ++token) {
    for (int64_t j = token % 16; j < n; j += 16) {
      double sum = 0, magnitude = 0;
      for (int64_t copy = token * 8; copy < token * 8 + 8; ++copy) {
        const int64_t expert = scenario.ids[0].get_id(copy);
        if (expert < 0) continue;
        const auto& weights = scenario.weights[static_cast<size_t>(expert / 4)];
        float row = 0;
        for (int64_t i = 0; i < 8; ++i)
          row += scenario.copies[0].get(copy * 8 + i) * weights.get((expert % 4 * n + j) * 8 + i);
        const double part = double{scenario.gates[0].get(copy)} * double{to_float(from_float<BFloat16>(row))};
        sum += part;
        magnitude += std::abs(part);
      }
      // Half a unit in the last of bfloat16's 8 bits, and what float32 may lose on the way.
      const double half_unit = std::ldexp(1.0, (sum == 0 ? -126 : std::ilogb(sum)) - 8);
      ASSERT_LE(std::abs(double{results[0].get(token * n + j)} - sum), half_unit + magnitude * 8 * 0x1p-23)
          << "token " << token << ", column " << j;
    }
  }
}

TEST(Reduction, OfEqualCallsIsEqualWhateverArrivesFirst) {
  Random random(2);
  const Scenario scenario =
      make_scenario(random, {.placement = Placement::even(2, 6), .top_k = 4, .tokens = {333, 333}});
  const auto expected = exact_results(scenario);
  SessionWorld world(scenario, poisoned(9));
  const int calls = testing::kSanitized ? 10 : 50;
  for (int call = 0; call < calls; ++call) ASSERT_TRUE(same_bits(world.run(scenario), expected)) << "call " << call;
}

TEST(Reduction, IsFreeOfNaNWhereExpertsHaveNoRows) {
  Random random(3);
  Scenario scenario = make_scenario(random, {.placement = Placement::even(2, 16), .top_k = 2, .tokens = {21, 17}});
  for (auto& ids : scenario.ids) {
    for (int64_t i = 0; i < ids.elements(); ++i)
      ids.put(i, i % 5 + (i % 2) * 8);  // three experts of each rank stay empty
  }
  for (const auto& out : run_once(scenario, poisoned())) {
    for (int64_t i = 0; i < out.elements(); ++i) ASSERT_TRUE(std::isfinite(out.get(i)));
  }
}

TEST(Reduction, NeverReadsASkippedSlotNorItsGate) {
  Random random(4);
  Scenario scenario = make_scenario(random, {.placement = Placement::even(2, 2), .top_k = 2, .tokens = {1, 1}});
  for (int32_t rank = 0; rank < 2; ++rank) {
    set_ids(scenario, rank, {1 - rank, -1});
    scenario.gates[static_cast<size_t>(rank)].put(0, 1);
    scenario.gates[static_cast<size_t>(rank)].put(1, kNaN);
  }
  const auto results = run_once(scenario, poisoned());
  for (const auto& out : results) {
    for (int64_t i = 0; i < out.elements(); ++i) ASSERT_TRUE(std::isfinite(out.get(i)));
  }
  EXPECT_TRUE(same_bits(results, exact_results(scenario)));
}

TEST(Reduction, AGateOfZeroDoesNotHideANaNThatWasRouted) {
  Random random(5);
  Scenario scenario = make_scenario(random, {.placement = Placement::even(2, 2), .top_k = 1, .tokens = {1, 1}});
  set_all_ids(scenario, 0);
  scenario.copies[1].fill(kNaN);
  scenario.gates[1].put(0, 0);
  const auto results = run_once(scenario, {});
  EXPECT_TRUE(std::isfinite(results[0].get(0)));
  EXPECT_TRUE(std::isnan(results[1].get(0)));
}

TEST(Reduction, NaNInOneRowStaysInItsToken) {
  Random random(6);
  Scenario scenario = make_scenario(random, {.placement = Placement::even(2, 2), .top_k = 2, .tokens = {30, 30}});
  for (int64_t i = 0; i < scenario.k; ++i) scenario.copies[0].put(7 * 2 * scenario.k + i, kNaN);
  scenario.ids[0].put(14, 1);
  const auto results = run_once(scenario, poisoned());
  for (size_t rank = 0; rank < 2; ++rank) {
    for (int64_t i = 0; i < results[rank].elements(); ++i) {
      ASSERT_EQ(std::isnan(results[rank].get(i)), rank == 0 && i / scenario.n == 7)
          << "rank " << rank << ", token " << i / scenario.n;
    }
  }
}

TEST(Reduction, PaddingRowsReachNobody) {
  // 130 rows in bands of 128: fill_rows makes the other 126 rows NaN.
  Random random(7);
  Scenario scenario = make_scenario(random, {.placement = Placement::even(2, 2), .top_k = 1, .tokens = {65, 65}});
  set_all_ids(scenario, 0);
  for (const Layout layout : {Layout::kOwnerAligned, Layout::kCompact}) {
    WorldSetup setup = poisoned();
    setup.plan = {.tile_m = 128, .tile_n = 16, .layout = layout};
    SessionWorld world(scenario, setup);
    ASSERT_TRUE(std::isnan(world.make_call(scenario).rows[0].get(255 * scenario.k)));
    EXPECT_TRUE(same_bits(world.run(scenario), exact_results(scenario)));
  }
}

TEST(Reduction, ATokenWithoutACopyBecomesExactlyZero) {
  Random random(8);
  Scenario scenario = make_scenario(random, {.placement = Placement::even(2, 4), .top_k = 2, .tokens = {4, 4}});
  for (int32_t rank = 0; rank < 2; ++rank) {
    set_ids(scenario, rank, {0, 1, 2, 3, -1, -1, 1, 2});
  }
  SessionWorld world(scenario, poisoned());
  auto call = world.make_call(scenario);
  for (auto& out : call.outs) out.fill(7);
  world.start_all(scenario, call);
  world.synchronize_all();
  for (const auto& out : call.outs) {
    for (int64_t j = 0; j < scenario.n; ++j) {
      EXPECT_EQ(out.get(2 * scenario.n + j), 0.0f);
      EXPECT_FALSE(std::signbit(out.get(2 * scenario.n + j)));
      EXPECT_NE(out.get(j), 7.0f);
    }
  }
}

TEST(Reduction, OverwritesAnOutputThatWasFilledJustBefore) {
  Random random(9);
  const Scenario scenario = make_scenario(random, {.placement = Placement::even(2, 4), .top_k = 2, .tokens = {9, 9}});
  const auto expected = exact_results(scenario);
  SessionWorld world(scenario, poisoned());
  auto call = world.make_call(scenario);
  for (int i = 0; i < 100; ++i) {
    for (auto& out : call.outs) out.poison();
    world.start_all(scenario, call);
    world.synchronize_all();
    ASSERT_TRUE(same_bits(call.outs, expected)) << "call " << i;
  }
}

TEST(Reduction, RoundsLargeValuesToInfinityAndKeepsTheirSign) {
  Random random(10);
  Scenario scenario = make_scenario(
      random,
      {.placement = Placement::even(2, 2), .dtype = DType::kFloat16, .k = 8, .n = 8, .top_k = 1, .tokens = {2, 2}});
  for (size_t rank = 0; rank < 2; ++rank) {
    scenario.copies[rank].fill(100);
    scenario.weights[rank].fill(100);  // 80,000 is past float16
    scenario.gates[rank].fill(-1);
    set_ids(scenario, static_cast<int32_t>(rank), {0, 1});
  }
  const auto results = run_once(scenario, {});
  EXPECT_EQ(results[0].get(0), -std::numeric_limits<float>::infinity());
  EXPECT_TRUE(same_bits(results, exact_results(scenario)));
}

}  // namespace
}  // namespace tileoverlap
