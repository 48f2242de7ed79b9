// Waits end at their limit and say who was waited for.

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "support/compare.hpp"
#include "support/messages.hpp"
#include "support/scoped_env.hpp"
#include "support/session_world.hpp"

namespace tileoverlap {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using testing::Call;
using testing::exact_results;
using testing::make_scenario;
using testing::message_of;
using testing::Random;
using testing::same_bits;
using testing::Says;
using testing::Scenario;
using testing::ScopedEnv;
using testing::SessionWorld;
using testing::WorldSetup;

constexpr int64_t kLimit = 200'000'000;

WorldSetup limited(int64_t limit_ns = kLimit) {
  WorldSetup setup;
  setup.timeout_ns = limit_ns;
  return setup;
}

// Every token's copies go to all ranks' experts in turn, so that every rank waits for every other one.
Scenario all_to_all(int32_t world, int64_t tokens) {
  Random random(1);
  const Placement placement = Placement::even(world, 2 * world);
  Scenario scenario = make_scenario(
      random, {.placement = placement, .top_k = 2, .tokens = std::vector<int64_t>(static_cast<size_t>(world), tokens)});
  for (auto& ids : scenario.ids) {
    for (int64_t i = 0; i < ids.elements(); ++i) ids.put(i, i % placement.experts());
  }
  return scenario;
}

// The error that a rank's calls ended with; fails the test where there is none.
WaitTimeout failure_of(Session& session) {
  try {
    session.synchronize();
  } catch (const WaitTimeout& error) {
    return error;
  }
  ADD_FAILURE() << "rank " << session.rank() << " did not fail";
  return WaitTimeout({}, -1);
}

// Checks that waiting ended after the limit and soon after it.
class Stopwatch {
 public:
  ~Stopwatch() {
    const auto took = steady_clock::now() - begin_;
    EXPECT_GE(took, std::chrono::nanoseconds(kLimit));
    EXPECT_LT(took, std::chrono::seconds(2));
  }

 private:
  steady_clock::time_point begin_ = steady_clock::now();
};

TEST(WaitLimits, AWithheldBandIsNamedOnItsRankAndOnItsPeer) {
  const Scenario scenario = all_to_all(2, 24);
  WorldSetup setup = limited();
  setup.cpu = {{.faults = {.withhold_band = 0}}, {}};
  SessionWorld world(scenario, setup);
  const Call call = world.make_call(scenario);
  const Segment segment = call.plans[0]->segments.at(0);
  ASSERT_EQ(segment.first_band, 0);
  const Stopwatch stopwatch;
  world.start_all(scenario, call);
  const WaitTimeout here = failure_of(world.session(0)), there = failure_of(world.session(1));
  EXPECT_THAT(here.what(), Says("rank 0", "consume", "expert " + std::to_string(segment.expert), "band 0", "tile 0",
                                "segment 0", "epoch 1", "0.2 s"));
  EXPECT_EQ(here.record().what, WaitFor::kBand);
  EXPECT_EQ(here.record().expected, 1u);
  EXPECT_THAT(there.what(),
              Says("rank 1", "told by rank 0", "expert " + std::to_string(segment.expert), "band 0", "epoch 1"));
}

TEST(WaitLimits, AWithheldBandIsNamedThoughThePeerBeganToWaitBefore) {
  // The peer's wait for rows reaches its limit first; the cause must come out all the same.
  const Scenario scenario = all_to_all(2, 24);
  WorldSetup setup = limited();
  setup.cpu = {{.faults = {.withhold_band = 1}}, {}};
  SessionWorld world(scenario, setup);
  const Call call = world.make_call(scenario);
  world.start(1, scenario, call);
  std::this_thread::sleep_for(milliseconds(50));
  world.start(0, scenario, call);
  EXPECT_THAT(failure_of(world.session(0)).what(), Says("rank 0", "band 1", "epoch 1"));
  failure_of(world.session(1));
}

TEST(WaitLimits, AWithheldBandOfALaterCallNamesItsEpoch) {
  Scenario scenario = all_to_all(2, 4);
  WorldSetup setup = limited();
  setup.cpu = {{.faults = {.withhold_band = 3}}, {}};
  setup.max_tokens = 32;
  SessionWorld world(scenario, setup);
  for (int call = 0; call < 2; ++call) {  // few tokens: no band 3
    ASSERT_TRUE(same_bits(world.run(scenario), exact_results(scenario)));
  }
  scenario = all_to_all(2, 32);
  const Call call = world.make_call(scenario);
  world.start_all(scenario, call);
  const WaitTimeout error = failure_of(world.session(0));
  EXPECT_THAT(error.what(), Says("band 3", "epoch 3", "saw epoch 0", "needed 3"));
  failure_of(world.session(1));
}

TEST(WaitLimits, AWithheldBandIsNamedOnItsRankInAWorldOfThree) {
  const Scenario scenario = all_to_all(3, 24);
  WorldSetup setup = limited();
  setup.cpu = {{}, {}, {.faults = {.withhold_band = 1}}};
  SessionWorld world(scenario, setup);
  const Call call = world.make_call(scenario);
  const Stopwatch stopwatch;
  world.start_all(scenario, call);
  EXPECT_THAT(failure_of(world.session(2)).what(), Says("rank 2", "expert 4", "band 1", "epoch 1"));
  for (const int32_t rank : {0, 1}) EXPECT_THAT(failure_of(world.session(rank)).what(), Says("rank 2", "epoch 1"));
}

TEST(WaitLimits, NobodyWaitsForAWithheldBandOfOwnRows) {
  const Scenario scenario = all_to_all(2, 24);
  WorldSetup setup = limited();
  SessionWorld shapes(scenario, setup);
  setup.cpu = {{.faults = {.withhold_band = shapes.make_call(scenario).plans[0]->order.back().band}}, {}};
  SessionWorld world(scenario, setup);
  EXPECT_TRUE(same_bits(world.run(scenario), exact_results(scenario)));
}

TEST(WaitLimits, ARankThatNeverRunsIsNamedByAllOthers) {
  const Scenario scenario = all_to_all(4, 8);
  SessionWorld world(scenario, limited());
  const Call call = world.make_call(scenario);
  const Stopwatch stopwatch;
  for (const int32_t rank : {0, 1, 3}) world.start(rank, scenario, call);
  for (const int32_t rank : {0, 1, 3}) {
    const WaitTimeout error = failure_of(world.session(rank));
    EXPECT_EQ(error.raised_on(), rank);
    EXPECT_EQ(error.record().peer, 2);
    EXPECT_EQ(error.record().what, WaitFor::kArrival);
    // Own rank, missing rank, epoch, bytes received and expected: 4 copies of 16 bfloat16 each.
    EXPECT_THAT(error.what(), Says("rank " + std::to_string(rank), "rank 2", "epoch 1", "0 of 128 bytes"));
  }
}

TEST(WaitLimits, ARankThatNeverPreparesIsNamed) {
  const Scenario scenario = all_to_all(3, 4);
  const SessionWorld shapes(scenario, {});
  const Call call = shapes.make_call(scenario);
  const auto transports = make_in_process_world(3);
  std::vector<std::unique_ptr<Session>> sessions;
  for (size_t rank = 0; rank < 2; ++rank) {
    sessions.push_back(make_cpu_executor(transports[rank])->prepare(session_options(scenario, limited())));
  }
  const Stopwatch stopwatch;
  for (int32_t rank = 0; rank < 2; ++rank) {
    sessions[static_cast<size_t>(rank)]->run(call.plans[static_cast<size_t>(rank)],
                                             SessionWorld::args(scenario, call, rank));
  }
  for (const auto& session : sessions) {
    const WaitTimeout error = failure_of(*session);
    EXPECT_EQ(error.record().what, WaitFor::kMemory);
    EXPECT_EQ(error.record().peer, 2);
    EXPECT_THAT(error.what(), Says("rank " + std::to_string(session->rank()), "rank 2", "transport", "memory"));
  }
}

TEST(WaitLimits, ARankThatRunsFewerCallsIsNamedWithTheCallItMissed) {
  const Scenario scenario = all_to_all(2, 6);
  SessionWorld world(scenario, limited());
  std::vector<Call> calls;
  for (int i = 0; i < 3; ++i) calls.push_back(world.make_call(scenario));
  for (const Call& call : calls) world.start(0, scenario, call);
  for (int i = 0; i < 2; ++i) world.start(1, scenario, calls[static_cast<size_t>(i)]);
  world.session(1).synchronize();
  const WaitTimeout error = failure_of(world.session(0));
  EXPECT_THAT(error.what(), Says("rank 0", "rank 1", "epoch 3"));
  const auto expected = exact_results(scenario);
  for (size_t i = 0; i < 2; ++i) EXPECT_TRUE(same_bits(calls[i].outs, expected));
}

TEST(WaitLimits, ACreditThatNeverComesNamesTheOwner) {
  // Rank 0 only sends: its first call needs nobody, its second may not overwrite what rank 1 never read.
  Random random(2);
  Scenario scenario =
      make_scenario(random, {.placement = Placement::from_begins({0, 1, 1}), .top_k = 1, .tokens = {0, 6}});
  set_all_ids(scenario, 0);
  SessionWorld world(scenario, limited());
  const Call first = world.make_call(scenario), second = world.make_call(scenario);
  world.start(0, scenario, first);
  world.session(0).synchronize();
  world.start(0, scenario, second);
  const WaitTimeout error = failure_of(world.session(0));
  EXPECT_EQ(error.record().what, WaitFor::kCredit);
  EXPECT_THAT(error.what(), Says("rank 0", "rank 1", "credit", "epoch 2", "saw epoch 0", "needed 1"));
}

TEST(WaitLimits, AFailedSessionRefusesFurtherUseWithTheSameError) {
  const Scenario scenario = all_to_all(2, 6);
  SessionWorld world(scenario, limited());
  const Call call = world.make_call(scenario);
  world.start(0, scenario, call);
  const std::string said = failure_of(world.session(0)).what();
  EXPECT_EQ(message_of<WaitTimeout>([&] { world.session(0).check(); }), said);
  EXPECT_EQ(message_of<WaitTimeout>([&] { world.session(0).synchronize(); }), said);
  EXPECT_EQ(message_of<WaitTimeout>([&] { world.start(0, scenario, call); }), said);
  // The peer was told; it learns of it at the latest in its next call, and at once.
  const auto begin = steady_clock::now();
  try {
    world.start(1, scenario, call);
    world.session(1).synchronize();
    ADD_FAILURE() << "rank 1 did not notice";
  } catch (const WaitTimeout& error) {
    EXPECT_THAT(error.what(), Says("rank 1", "told by rank 0"));
  }
  EXPECT_LT(steady_clock::now() - begin, milliseconds(150));
}

TEST(WaitLimits, CheckLearnsOfAPeersFailureWithoutARun) {
  const Scenario scenario = all_to_all(2, 6);
  SessionWorld world(scenario, limited());
  const Call call = world.make_call(scenario);
  world.session(1).check();
  world.start(0, scenario, call);
  failure_of(world.session(0));
  EXPECT_THAT(message_of<WaitTimeout>([&] { world.session(1).check(); }), Says("rank 1", "told by rank 0", "epoch 1"));
}

TEST(WaitLimits, EndTheCallsThatWereQueuedBehindTheFailedOne) {
  const Scenario scenario = all_to_all(2, 6);
  SessionWorld world(scenario, limited());
  std::vector<Call> calls;
  for (int i = 0; i < 5; ++i) calls.push_back(world.make_call(scenario));
  const Stopwatch stopwatch;  // one limit, not five
  for (const Call& call : calls) world.start(0, scenario, call);
  EXPECT_THAT(failure_of(world.session(0)).what(), Says("rank 1", "epoch 1"));
  for (const Call& call : calls) EXPECT_TRUE(std::isnan(call.outs[0].get(0)));  // no half-made result
}

TEST(WaitLimits, WaitEndsAtItsOwnLimitAndThrowsNothing) {
  const Scenario scenario = all_to_all(2, 6);
  SessionWorld world(scenario, limited(60'000'000'000));
  const Call call = world.make_call(scenario);
  EXPECT_TRUE(world.session(0).wait(0));  // no run so far
  world.start(0, scenario, call);
  EXPECT_FALSE(world.session(0).wait(0));
  EXPECT_FALSE(world.session(0).wait(-1));
  const auto begin = steady_clock::now();
  EXPECT_FALSE(world.session(0).wait(50'000'000));
  EXPECT_GE(steady_clock::now() - begin, milliseconds(50));
  world.start(1, scenario, call);
  EXPECT_TRUE(world.session(0).wait(60'000'000'000));
  EXPECT_TRUE(call.outs[0] == exact_results(scenario)[0]);
  world.synchronize_all();
}

TEST(WaitLimits, WaitTakesTheLongestLimitThereIs) {
  const Scenario scenario = all_to_all(2, 6);
  SessionWorld world(scenario, limited(60'000'000'000));
  const Call call = world.make_call(scenario);
  world.start(0, scenario, call);
  std::thread late([&] {
    std::this_thread::sleep_for(milliseconds(100));
    world.start(1, scenario, call);
  });
  EXPECT_TRUE(world.session(0).wait(std::numeric_limits<int64_t>::max()));
  late.join();
  world.synchronize_all();
}

TEST(WaitLimits, WaitIsOverForAFailedRun) {
  const Scenario scenario = all_to_all(2, 6);
  SessionWorld world(scenario, limited());
  const Call call = world.make_call(scenario);
  world.start(0, scenario, call);
  EXPECT_TRUE(world.session(0).wait(60'000'000'000));
  EXPECT_THROW(world.session(0).check(), WaitTimeout);
}

TEST(WaitLimits, CheckDoesNotWait) {
  const Scenario scenario = all_to_all(2, 6);
  SessionWorld world(scenario, limited(2'000'000'000));
  const Call call = world.make_call(scenario);
  world.start(0, scenario, call);
  const auto begin = steady_clock::now();
  world.session(0).check();
  EXPECT_LT(steady_clock::now() - begin, std::chrono::seconds(1));
  world.start(1, scenario, call);
  world.synchronize_all();
}

TEST(WaitLimits, ALateRankIsForgivenWithinTheLimitAndNamedBeyondIt) {
  const Scenario scenario = all_to_all(2, 6);
  for (const bool patient : {true, false}) {
    SessionWorld world(scenario, limited(patient ? 60'000'000'000 : 100'000'000));
    const Call call = world.make_call(scenario);
    world.start(0, scenario, call);
    std::this_thread::sleep_for(milliseconds(400));
    if (patient) {
      world.start(1, scenario, call);
      world.synchronize_all();
      EXPECT_TRUE(same_bits(call.outs, exact_results(scenario)));
    } else {
      EXPECT_THAT(failure_of(world.session(0)).what(), Says("rank 1", "0.1 s"));
    }
  }
}

TEST(WaitLimits, TheFirstCallHasALimitOfItsOwn) {
  const Scenario scenario = all_to_all(2, 6);
  WorldSetup setup = limited(100'000'000);
  setup.warmup_timeout_ns = 60'000'000'000;
  SessionWorld world(scenario, setup);
  const Call first = world.make_call(scenario), second = world.make_call(scenario);
  world.start(0, scenario, first);
  std::this_thread::sleep_for(milliseconds(400));
  world.start(1, scenario, first);
  world.synchronize_all();
  EXPECT_TRUE(same_bits(first.outs, exact_results(scenario)));
  world.start(0, scenario, second);
  EXPECT_THAT(failure_of(world.session(0)).what(), Says("rank 1", "epoch 2", "0.1 s"));
}

TEST(WaitLimits, ComeFromTheEnvironmentWhereNoneIsGiven) {
  const ScopedEnv timeout("TILEOVERLAP_TIMEOUT_S", "0.2"), warmup("TILEOVERLAP_WARMUP_TIMEOUT_S", std::nullopt);
  const Scenario scenario = all_to_all(2, 6);
  SessionWorld world(scenario, limited(0));
  EXPECT_EQ(world.session(0).options().timeout_ns, 200'000'000);
  EXPECT_EQ(world.session(0).options().warmup_timeout_ns, 200'000'000);
  const Call call = world.make_call(scenario);
  const Stopwatch stopwatch;
  world.start(0, scenario, call);
  EXPECT_THAT(failure_of(world.session(0)).what(), Says("rank 1", "0.2 s"));
}

TEST(WaitLimits, ABadEnvironmentIsRefusedAtPrepare) {
  const ScopedEnv timeout("TILEOVERLAP_TIMEOUT_S", "soon");
  const Scenario scenario = all_to_all(1, 1);
  EXPECT_THAT(message_of<InvalidArgument>([&] { SessionWorld(scenario, limited(0)); }),
              Says("TILEOVERLAP_TIMEOUT_S", "soon"));
}

TEST(WaitLimits, AFailureLeavesAnotherSessionOfTheSameWorldAlone) {
  const Scenario scenario = all_to_all(2, 6);
  const auto expected = exact_results(scenario);
  const auto transports = make_in_process_world(2);
  const SessionWorld shapes(scenario, {});
  const Call call = shapes.make_call(scenario);
  std::vector<std::unique_ptr<Session>> failing, working;
  for (const auto& transport : transports) {
    const auto executor = make_cpu_executor(transport);
    failing.push_back(executor->prepare(session_options(scenario, limited())));
    working.push_back(executor->prepare(session_options(scenario, limited())));
  }
  failing[0]->run(call.plans[0], SessionWorld::args(scenario, call, 0));
  failure_of(*failing[0]);
  for (int32_t rank = 0; rank < 2; ++rank) {
    working[static_cast<size_t>(rank)]->run(call.plans[static_cast<size_t>(rank)],
                                            SessionWorld::args(scenario, call, rank));
  }
  for (const auto& session : working) session->synchronize();
  EXPECT_TRUE(same_bits(call.outs, expected));
}

}  // namespace
}  // namespace tileoverlap
