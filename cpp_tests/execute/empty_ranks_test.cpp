// No tokens, no rows, no experts: on one rank, on all, and changing from call to call.

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
using testing::SessionWorld;
using testing::WorldSetup;

WorldSetup poisoned() {
  WorldSetup setup;
  setup.cpu = {{.faults = {.poison = true}}};
  return setup;
}

TEST(EmptyRanks, ARankWithoutTokensStillServesItsExperts) {
  Random random(1);
  const Scenario scenario = make_scenario(
      random, {.placement = Placement::even(4, 8), .k = 64, .n = 256, .top_k = 2, .tokens = {0, 16, 16, 16}});
  SessionWorld world(scenario, poisoned());
  const auto call = world.make_call(scenario);
  ASSERT_GT(call.plans[0]->rows, 0);
  ASSERT_EQ(world.args(scenario, call, 0).out.tensor->data, nullptr);  // an empty output may have none
  world.start_all(scenario, call);
  world.synchronize_all();
  EXPECT_EQ(call.outs[0].size(0), 0);
  EXPECT_EQ(call.outs[0].size(1), 256);
  EXPECT_TRUE(same_bits(call.outs, exact_results(scenario)));
}

TEST(EmptyRanks, ARankWithoutRowsStillGetsItsResults) {
  Random random(2);
  Scenario scenario = make_scenario(random, {.placement = Placement::even(2, 8), .top_k = 2, .tokens = {9, 7}});
  for (auto& ids : scenario.ids) {
    for (int64_t i = 0; i < ids.elements(); ++i) ids.put(i, 4 + i % 4);
  }
  SessionWorld world(scenario, poisoned());
  ASSERT_EQ(world.make_call(scenario).plans[0].tiles(), 0);
  EXPECT_TRUE(same_bits(world.run(scenario), exact_results(scenario)));
}

TEST(EmptyRanks, NoTokensAnywhereIsACallLikeAnyOther) {
  for (const int32_t world_size : {1, 4}) {
    Random random(3);
    const Scenario scenario =
        make_scenario(random, {.placement = Placement::even(world_size, 4),
                               .top_k = 2,
                               .tokens = std::vector<int64_t>(static_cast<size_t>(world_size), 0)});
    SessionWorld world(scenario, poisoned());
    for (int call = 0; call < 3; ++call) EXPECT_TRUE(same_bits(world.run(scenario), exact_results(scenario)));
    for (int32_t rank = 0; rank < world_size; ++rank) EXPECT_EQ(world.session(rank).epoch(), 3u);
  }
}

TEST(EmptyRanks, OnlySkippedSlotsGiveZeros) {
  Random random(4);
  Scenario scenario = make_scenario(random, {.placement = Placement::even(3, 3), .top_k = 2, .tokens = {4, 5, 6}});
  set_all_ids(scenario, -1);
  const auto results = run_once(scenario, poisoned());
  for (const auto& out : results) {
    for (int64_t i = 0; i < out.elements(); ++i) ASSERT_EQ(out.get(i), 0.0f);
  }
}

TEST(EmptyRanks, EmptyExpertsBetweenFullOnesAreNotWaitedFor) {
  // Rank 0 hosts four experts with 130, 0, 0 and 5 rows, all of rank 1.
  Random random(5);
  Scenario scenario = make_scenario(random, {.placement = Placement::even(2, 8), .top_k = 1, .tokens = {0, 135}});
  for (int64_t token = 0; token < 135; ++token) scenario.ids[1].put(token, token < 130 ? 0 : 3);
  for (const Layout layout : {Layout::kOwnerAligned, Layout::kCompact}) {
    WorldSetup setup = poisoned();
    setup.plan = {.tile_m = 128, .tile_n = 16, .layout = layout};
    EXPECT_TRUE(same_bits(run_once(scenario, setup), exact_results(scenario)));
  }
}

TEST(EmptyRanks, ARankWithoutExpertsTakesPart) {
  Random random(6);
  const Scenario scenario =
      make_scenario(random, {.placement = Placement::from_begins({0, 0, 3, 3}), .top_k = 2, .tokens = {5, 6, 7}});
  ASSERT_EQ(scenario.weights[0].size(0), 0);
  EXPECT_TRUE(same_bits(run_once(scenario, poisoned()), exact_results(scenario)));
}

TEST(EmptyRanks, AWorldWithoutExpertsGivesZeros) {
  Random random(7);
  const Scenario scenario = make_scenario(random, {.placement = Placement::even(2, 0), .top_k = 2, .tokens = {3, 4}});
  EXPECT_TRUE(same_bits(run_once(scenario, poisoned()), exact_results(scenario)));
}

TEST(EmptyRanks, AdvanceTheSameEpochsAsBusyOnes) {
  Random random(8);
  Scenario scenario = make_scenario(random, {.placement = Placement::even(4, 8), .top_k = 1, .tokens = {6, 6, 6, 6}});
  SessionWorld world(scenario, poisoned());
  for (int call = 1; call <= 6; ++call) {
    draw_tokens(random, scenario, {6, 6, 6, 6});
    for (auto& ids : scenario.ids) {
      for (int64_t i = 0; i < ids.elements(); ++i) ids.put(i, (call <= 3 ? 4 : 0) + i % 2);  // rank 2's, then rank 0's
    }
    ASSERT_TRUE(same_bits(world.run(scenario), exact_results(scenario))) << "call " << call;
    for (int32_t rank = 0; rank < 4; ++rank) ASSERT_EQ(world.session(rank).epoch(), static_cast<uint64_t>(call));
  }
}

TEST(EmptyRanks, MayTakeTurns) {
  Random random(9);
  Scenario scenario = make_scenario(random, {.placement = Placement::even(3, 5), .top_k = 3, .tokens = {8, 8, 8}});
  SessionWorld world(scenario, poisoned());
  for (const std::vector<int64_t>& tokens :
       {std::vector<int64_t>{0, 8, 8}, {8, 0, 0}, {0, 0, 0}, {1, 8, 0}, {8, 8, 8}}) {
    draw_tokens(random, scenario, tokens);
    ASSERT_TRUE(same_bits(world.run(scenario), exact_results(scenario)))
        << tokens[0] << ' ' << tokens[1] << ' ' << tokens[2];
  }
}

TEST(EmptyRanks, AreTheOnlyOnesOfASessionForNoTokens) {
  Random random(10);
  const Scenario scenario = make_scenario(random, {.placement = Placement::even(2, 2), .top_k = 1, .tokens = {0, 0}});
  WorldSetup setup = poisoned();
  setup.max_tokens = 0;
  SessionWorld world(scenario, setup);
  EXPECT_EQ(world.session(0).sizes().staging_bytes, 0);
  EXPECT_TRUE(same_bits(world.run(scenario), exact_results(scenario)));
}

}  // namespace
}  // namespace tileoverlap
