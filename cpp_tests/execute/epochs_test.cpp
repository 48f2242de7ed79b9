// Calls in a row: what one call leaves behind must not reach the next.

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "support/build_kind.hpp"
#include "support/compare.hpp"
#include "support/session_world.hpp"

namespace tileoverlap {
namespace {

using testing::Call;
using testing::exact_results;
using testing::make_scenario;
using testing::Random;
using testing::same_bits;
using testing::Scenario;
using testing::SessionWorld;
using testing::WorldSetup;

WorldSetup poisoned(CpuFaults faults = {}) {
  faults.poison = true;
  WorldSetup setup;
  setup.cpu = {{.producer_threads = 2, .consumer_threads = 2, .faults = faults}};
  return setup;
}

TEST(Epochs, ALateRankIsWaitedForInEveryCall) {
  Random random(1);
  Scenario scenario = make_scenario(random, {.placement = Placement::even(2, 4), .top_k = 2, .tokens = {12, 12}});
  SessionWorld world(scenario, poisoned());
  for (int number = 1; number <= 3; ++number) {
    draw_tokens(random, scenario, {12, 12});
    const Call call = world.make_call(scenario);
    world.start(0, scenario, call);
    if (number == 2) std::this_thread::sleep_for(std::chrono::milliseconds(50));
    world.start(1, scenario, call);
    world.synchronize_all();
    ASSERT_TRUE(same_bits(call.outs, exact_results(scenario))) << "call " << number;
  }
}

TEST(Epochs, ThousandsOfCallsOfOneTokenWithManyThreads) {
  Random random(2);
  Scenario scenario =
      make_scenario(random, {.placement = Placement::even(2, 2), .k = 8, .n = 8, .top_k = 1, .tokens = {1, 1}});
  for (int32_t rank = 0; rank < 2; ++rank) set_ids(scenario, rank, {1 - rank});
  const auto expected = exact_results(scenario);
  WorldSetup setup = poisoned();
  setup.cpu[0].consumer_threads = 8;
  SessionWorld world(scenario, setup);
  const Call call = world.make_call(scenario);
  const int calls = testing::kSanitized ? 300 : 2000;
  for (int number = 0; number < calls; ++number) world.start_all(scenario, call);  // back to back
  world.synchronize_all();
  EXPECT_TRUE(same_bits(call.outs, expected));
  EXPECT_EQ(world.session(0).epoch(), static_cast<uint64_t>(calls));
}

TEST(Epochs, PassTwoToThe32) {
  // Epoch 2^32 is 0 in 32 bits, as the flags of bands that no call has used yet are; the producer is late, so that a
  // flag which counts by mistake gives a poisoned row. Once that epoch is the session's first, once its second.
  Random random(3);
  for (const uint64_t first : {(uint64_t{1} << 32) - 1, (uint64_t{1} << 32) - 2}) {
    Scenario scenario = make_scenario(random, {.placement = Placement::even(3, 6), .top_k = 2, .tokens = {7, 8, 9}});
    SessionWorld world(scenario, poisoned({.max_delay_us = 500, .first_epoch = first}));
    EXPECT_EQ(world.session(0).epoch(), first);
    for (uint64_t number = 1; number <= 5; ++number) {
      const bool empty = first + number < uint64_t{1} << 32;  // leaves all flags as they were made
      draw_tokens(random, scenario, empty ? std::vector<int64_t>{0, 0, 0} : std::vector<int64_t>{7, 8, 9});
      ASSERT_TRUE(same_bits(world.run(scenario), exact_results(scenario))) << "call " << number;
      ASSERT_EQ(world.session(2).epoch(), first + number);
    }
  }
}

TEST(Epochs, SmallAndLargeCallsTakeTurns) {
  Random random(4);
  Scenario scenario = make_scenario(random, {.placement = Placement::even(2, 4), .top_k = 2, .tokens = {64, 64}});
  SessionWorld world(scenario, poisoned());
  const int rounds = testing::kSanitized ? 10 : 50;
  for (int round = 0; round < rounds; ++round) {
    for (const int64_t tokens : {1, 64}) {
      draw_tokens(random, scenario, {tokens, tokens});
      ASSERT_TRUE(same_bits(world.run(scenario), exact_results(scenario))) << "round " << round << ", T = " << tokens;
    }
  }
}

TEST(Epochs, CallsInFlightKeepTheirOwnResults) {
  Random random(5);
  for (const bool rank_by_rank : {false, true}) {
    std::vector<Scenario> scenarios;
    std::vector<Call> calls;
    for (int i = 0; i < 4; ++i) {
      scenarios.push_back(make_scenario(random, {.placement = Placement::even(2, 4), .top_k = 2, .tokens = {16, 16}}));
    }
    SessionWorld world(scenarios[0], poisoned({.max_delay_us = 200}));
    for (const Scenario& scenario : scenarios) calls.push_back(world.make_call(scenario));
    if (rank_by_rank) {  // one rank is calls ahead of the other
      for (int32_t rank = 0; rank < 2; ++rank) {
        for (size_t i = 0; i < 4; ++i) world.start(rank, scenarios[i], calls[i]);
      }
    } else {
      for (size_t i = 0; i < 4; ++i) world.start_all(scenarios[i], calls[i]);
    }
    world.synchronize_all();
    for (size_t i = 0; i < 4; ++i) ASSERT_TRUE(same_bits(calls[i].outs, exact_results(scenarios[i]))) << "call " << i;
  }
}

TEST(Epochs, AFastRankDoesNotOverwriteASlowOne) {
  // Rank 0 sends at once, rank 1's threads dawdle: without credits call 2 would land in call 1's staging.
  Random random(6);
  std::vector<Scenario> scenarios;
  for (int i = 0; i < 6; ++i) {
    scenarios.push_back(make_scenario(random, {.placement = Placement::even(2, 4), .top_k = 2, .tokens = {10, 10}}));
  }
  WorldSetup setup = poisoned();
  setup.cpu = {{.faults = {.poison = true}}, {.faults = {.shuffle_seed = 3, .max_delay_us = 2000, .poison = true}}};
  SessionWorld world(scenarios[0], setup);
  std::vector<Call> calls;
  for (const Scenario& scenario : scenarios) calls.push_back(world.make_call(scenario));
  for (size_t i = 0; i < scenarios.size(); ++i) world.start_all(scenarios[i], calls[i]);
  world.synchronize_all();
  for (size_t i = 0; i < scenarios.size(); ++i) ASSERT_TRUE(same_bits(calls[i].outs, exact_results(scenarios[i]))) << i;
}

TEST(Epochs, ASegmentThatComesLateIsNotReadEarly) {
  // Three segments a peer, each held back by up to 20 ms at random.
  Random random(7);
  Scenario scenario = make_scenario(random, {.placement = Placement::even(2, 2), .top_k = 1, .tokens = {12, 12}});
  for (int32_t rank = 0; rank < 2; ++rank) {
    for (int64_t i = 0; i < 12; ++i) scenario.ids[static_cast<size_t>(rank)].put(i, 1 - rank);
  }
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    WorldSetup setup = poisoned({.shuffle_seed = seed, .max_delay_us = 20'000});
    setup.cpu[0].consumer_threads = 3;
    SessionWorld world(scenario, setup);
    const Call call = world.make_call(scenario);
    ASSERT_EQ(call.plans[0]->segments.size(), 3u);
    world.start_all(scenario, call);
    world.synchronize_all();
    ASSERT_TRUE(same_bits(call.outs, exact_results(scenario)));
  }
}

TEST(Epochs, FreshMemoryIsNotTakenAsZero) {
  // Leaves 0xFF behind on the heap before the session is prepared.
  Random random(8);
  const Scenario scenario = make_scenario(random, {.placement = Placement::even(2, 4), .top_k = 2, .tokens = {40, 40}});
  for (int round = 0; round < 4; ++round) {
    for (size_t bytes = 64; bytes < (1 << 18); bytes *= 2) {
      std::vector<std::vector<unsigned char>> dirt;
      for (int i = 0; i < 4; ++i) dirt.emplace_back(bytes, static_cast<unsigned char>(0xff));
      ASSERT_EQ(dirt[3][bytes - 1], 0xff);
    }
    EXPECT_TRUE(same_bits(run_once(scenario, {}), exact_results(scenario)));
  }
}

TEST(Epochs, OfTwoSessionsInOneWorldAreIndependent) {
  Random random(9);
  const Scenario first = make_scenario(random, {.placement = Placement::even(2, 4), .top_k = 2, .tokens = {12, 12}});
  const Scenario second = make_scenario(
      random, {.placement = Placement::even(2, 2), .dtype = DType::kFloat32, .n = 32, .top_k = 1, .tokens = {5, 9}});
  const auto expected_first = exact_results(first), expected_second = exact_results(second);
  const WorldSetup setup = poisoned({.max_delay_us = 100});
  const auto transports = make_in_process_world(2);
  std::vector<std::unique_ptr<Session>> of_first, of_second;
  for (int32_t rank = 0; rank < 2; ++rank) {
    const auto executor = make_cpu_executor(transports[static_cast<size_t>(rank)], setup.cpu_of(rank));
    of_first.push_back(executor->prepare(session_options(first, setup)));
    of_second.push_back(executor->prepare(session_options(second, setup)));
  }
  const SessionWorld shapes(first, setup), other_shapes(second, setup);  // for plans and tensors only
  for (int number = 0; number < 10; ++number) {
    const Call a = shapes.make_call(first), b = other_shapes.make_call(second);
    of_first[0]->run(a.plans[0], SessionWorld::args(first, a, 0));
    of_second[0]->run(b.plans[0], SessionWorld::args(second, b, 0));
    of_second[1]->run(b.plans[1], SessionWorld::args(second, b, 1));  // the other order on rank 1
    of_first[1]->run(a.plans[1], SessionWorld::args(first, a, 1));
    for (size_t rank = 0; rank < 2; ++rank) {
      of_second[rank]->synchronize();
      of_first[rank]->synchronize();
    }
    ASSERT_TRUE(same_bits(a.outs, expected_first)) << number;
    ASSERT_TRUE(same_bits(b.outs, expected_second)) << number;
  }
}

}  // namespace
}  // namespace tileoverlap
