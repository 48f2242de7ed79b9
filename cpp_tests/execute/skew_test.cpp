// Extreme routings: one expert for everybody, one rank with all tokens, capacities at their limit.

#include <gtest/gtest.h>

#include <vector>

#include "support/compare.hpp"
#include "support/messages.hpp"
#include "support/session_world.hpp"

namespace tileoverlap {
namespace {

using testing::exact_results;
using testing::make_scenario;
using testing::message_of;
using testing::Random;
using testing::run_once;
using testing::same_bits;
using testing::Says;
using testing::Scenario;
using testing::SessionWorld;
using testing::WorldSetup;

WorldSetup poisoned(const PlanOptions& plan = {.tile_m = 4, .tile_n = 8}) {
  WorldSetup setup{.plan = plan};
  setup.cpu = {{.faults = {.poison = true}}};
  return setup;
}

TEST(Skew, OneExpertTakesEveryTokenOfEveryRank) {
  Random random(1);
  Scenario scenario = make_scenario(
      random, {.placement = Placement::even(4, 8), .k = 8, .n = 8, .top_k = 1, .tokens = {1024, 1024, 1024, 1024}});
  set_all_ids(scenario, 5);
  for (const Layout layout : {Layout::kOwnerAligned, Layout::kCompact}) {
    SessionWorld world(scenario, poisoned({.tile_m = 128, .layout = layout}));
    EXPECT_EQ(world.make_call(scenario).plans[2]->rows, 4096);
    EXPECT_TRUE(same_bits(world.run(scenario), exact_results(scenario)));
  }
}

TEST(Skew, OneRankHasAlmostAllTokens) {
  Random random(2);
  Scenario scenario = make_scenario(random, {.placement = Placement::even(4, 8), .top_k = 2, .tokens = {1, 1, 1, 500}});
  for (auto& ids : scenario.ids) {
    for (int64_t i = 0; i < ids.elements(); ++i) ids.put(i, i % 2);  // rank 0's experts
  }
  EXPECT_TRUE(same_bits(run_once(scenario, poisoned()), exact_results(scenario)));
}

TEST(Skew, EverySlotOfEveryTokenNamesOneExpert) {
  Random random(3);
  for (const Layout layout : {Layout::kOwnerAligned, Layout::kCompact}) {
    Scenario scenario = make_scenario(random, {.placement = Placement::even(3, 6), .top_k = 4, .tokens = {33, 20, 7}});
    SessionWorld world(scenario, poisoned({.tile_m = 8, .tile_n = 16, .layout = layout}));
    for (int64_t expert = 0; expert < 6; ++expert) {
      set_all_ids(scenario, expert);
      ASSERT_TRUE(same_bits(world.run(scenario), exact_results(scenario))) << expert;
    }
  }
}

TEST(Skew, TheWorstPaddingFitsInWhatWasPrepared) {
  // One row in every run, and what is left of the copies in one of them.
  Random random(4);
  Scenario scenario =
      make_scenario(random, {.placement = Placement::even(3, 9), .k = 8, .n = 8, .top_k = 6, .tokens = {5, 5, 5}});
  for (auto& ids : scenario.ids) {
    for (int64_t i = 0; i < ids.elements(); ++i) ids.put(i, i < 9 ? i : 4);
  }
  for (const int32_t tile_m : {1, 2, 7, 64}) {
    const WorldSetup setup = poisoned({.tile_m = tile_m, .layout = Layout::kOwnerAligned});
    ASSERT_TRUE(same_bits(run_once(scenario, setup), exact_results(scenario))) << tile_m;
  }
}

TEST(Skew, MoreTokensThanPreparedAreRefusedOnEveryRankAndTheSessionStaysUsable) {
  Random random(5);
  Scenario scenario =
      make_scenario(random, {.placement = Placement::even(2, 2), .k = 8, .n = 8, .top_k = 1, .tokens = {8192, 3}});
  for (auto& ids : scenario.ids) {
    for (int64_t i = 0; i < ids.elements(); ++i) ids.put(i, i % 2);
  }
  WorldSetup setup = poisoned({.tile_m = 128});
  setup.max_tokens = 6144;
  SessionWorld world(scenario, setup);
  auto call = world.make_call(scenario);
  for (int32_t rank = 0; rank < 2; ++rank) {
    EXPECT_THAT(message_of<CapacityError>([&] { world.start(rank, scenario, call); }), Says("rank 0", "8192", "6144"));
    EXPECT_EQ(world.session(rank).epoch(), 0u);
  }
  world.synchronize_all();  // nothing was started, nobody waits
  EXPECT_TRUE(std::isnan(call.outs[1].get(0)));
  draw_tokens(random, scenario, {6144, 3});
  EXPECT_TRUE(same_bits(world.run(scenario), exact_results(scenario)));
}

TEST(Skew, MoreTokensThanPreparedAreRefusedEvenWhenAllAreSkipped) {
  Random random(6);
  Scenario scenario = make_scenario(random, {.placement = Placement::even(2, 2), .top_k = 2, .tokens = {11, 3}});
  set_all_ids(scenario, -1);
  WorldSetup setup = poisoned();
  setup.max_tokens = 10;
  SessionWorld world(scenario, setup);
  const auto call = world.make_call(scenario);
  EXPECT_THAT(message_of<CapacityError>([&] { world.start(0, scenario, call); }), Says("rank 0", "11", "10"));
}

TEST(Skew, NothingIsDroppedAtTheLimit) {
  Random random(7);
  Scenario scenario = make_scenario(random, {.placement = Placement::even(2, 4), .top_k = 4, .tokens = {16, 16}});
  set_all_ids(scenario, 2);
  WorldSetup setup = poisoned();
  setup.max_tokens = 16;
  const auto results = run_once(scenario, setup);  // outputs are NaN before the run
  EXPECT_TRUE(same_bits(results, exact_results(scenario)));
}

}  // namespace
}  // namespace tileoverlap
