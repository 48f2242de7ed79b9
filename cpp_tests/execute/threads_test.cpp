// One session, or several, used from several threads.

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "support/compare.hpp"
#include "support/rank_threads.hpp"
#include "support/session_world.hpp"

namespace tileoverlap {
namespace {

using testing::Call;
using testing::exact_results;
using testing::make_scenario;
using testing::on_each_rank;
using testing::Random;
using testing::same_bits;
using testing::Scenario;
using testing::SessionWorld;
using testing::WorldSetup;

TEST(SessionThreads, TwoCallersOfOneSessionAreOrdered) {
  // Both threads of a rank make the same call, so that it does not matter whose comes first.
  Random random(1);
  const Scenario scenario = make_scenario(random, {.placement = Placement::even(2, 4), .top_k = 2, .tokens = {9, 12}});
  const auto expected = exact_results(scenario);
  WorldSetup setup;
  setup.cpu = {{.faults = {.max_delay_us = 50, .poison = true}}};
  SessionWorld world(scenario, setup);
  constexpr int kCalls = 20;
  std::vector<Call> calls;
  for (int i = 0; i < 2 * kCalls; ++i) calls.push_back(world.make_call(scenario));
  on_each_rank(4, [&](int32_t thread) {  // two threads a rank
    for (int i = 0; i < kCalls; ++i) world.start(thread / 2, scenario, calls[static_cast<size_t>(2 * i + thread % 2)]);
    world.session(thread / 2).synchronize();
  });
  world.synchronize_all();
  for (const Call& call : calls) ASSERT_TRUE(same_bits(call.outs, expected));
  EXPECT_EQ(world.session(0).epoch(), static_cast<uint64_t>(2 * kCalls));
}

TEST(SessionThreads, EachRankMayHaveAThreadOfItsOwn) {
  Random random(2);
  std::vector<Scenario> scenarios;
  for (int i = 0; i < 20; ++i) {
    scenarios.push_back(
        make_scenario(random, {.placement = Placement::even(4, 6), .top_k = 2, .tokens = {5, 0, 9, 7}}));
  }
  SessionWorld world(scenarios[0], {});
  std::vector<Call> calls;
  for (const Scenario& scenario : scenarios) calls.push_back(world.make_call(scenario));
  on_each_rank(4, [&](int32_t rank) {
    for (size_t i = 0; i < calls.size(); ++i) {
      world.start(rank, scenarios[i], calls[i]);
      if (i % 3 == 0) world.session(rank).synchronize();
    }
    world.session(rank).synchronize();
  });
  for (size_t i = 0; i < calls.size(); ++i) ASSERT_TRUE(same_bits(calls[i].outs, exact_results(scenarios[i]))) << i;
}

TEST(SessionThreads, RanksMayPrepareFromThreadsOfTheirOwn) {
  Random random(3);
  const Scenario scenario =
      make_scenario(random, {.placement = Placement::even(3, 6), .top_k = 2, .tokens = {5, 6, 7}});
  const auto expected = exact_results(scenario);
  const WorldSetup setup;
  const SessionWorld shapes(scenario, setup);  // for plans and tensors only
  const Call call = shapes.make_call(scenario);
  const auto transports = make_in_process_world(3);
  on_each_rank(3, [&](int32_t rank) {
    const auto r = static_cast<size_t>(rank);
    const auto session = make_cpu_executor(transports[r])->prepare(session_options(scenario, setup));
    session->run(call.plans[r], SessionWorld::args(scenario, call, rank));
    session->synchronize();
  });
  EXPECT_TRUE(same_bits(call.outs, expected));
}

TEST(SessionThreads, ManyWorldsAtOnceDoNotMix) {
  Random random(4);
  std::vector<Scenario> scenarios;
  for (int i = 0; i < 3; ++i) {
    scenarios.push_back(make_scenario(random, {.placement = Placement::even(2, 3), .top_k = 2, .tokens = {8, 8}}));
  }
  on_each_rank(3, [&](int32_t number) {
    const Scenario& scenario = scenarios[static_cast<size_t>(number)];
    const auto expected = exact_results(scenario);
    SessionWorld world(scenario, {});
    for (int i = 0; i < 10; ++i) EXPECT_TRUE(same_bits(world.run(scenario), expected));
  });
}

}  // namespace
}  // namespace tileoverlap
