// Destroying sessions: with calls outstanding, out of order, after failures. Nothing may hang or touch freed memory.

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <vector>

#include "support/compare.hpp"
#include "support/messages.hpp"
#include "support/session_world.hpp"

namespace tileoverlap {
namespace {

using std::chrono::steady_clock;
using testing::Call;
using testing::exact_results;
using testing::make_scenario;
using testing::Random;
using testing::same_bits;
using testing::Says;
using testing::Scenario;
using testing::SessionWorld;
using testing::WorldSetup;

Scenario busy(int32_t world = 3) {
  Random random(1);
  return make_scenario(random, {.placement = Placement::even(world, 2 * world),
                                .top_k = 3,
                                .tokens = std::vector<int64_t>(static_cast<size_t>(world), 20)});
}

WorldSetup slow() {
  WorldSetup setup;
  setup.cpu = {{.producer_threads = 2,
                .consumer_threads = 2,
                .faults = {.shuffle_seed = 1, .max_delay_us = 500, .poison = true}}};
  return setup;
}

// Limits are a minute: whatever ends sooner did not wait for one.
class EndsSoon {
 public:
  ~EndsSoon() { EXPECT_LT(steady_clock::now() - begin_, std::chrono::seconds(20)); }

 private:
  steady_clock::time_point begin_ = steady_clock::now();
};

TEST(Teardown, OfSessionsThatNeverRan) {
  const EndsSoon ends_soon;
  const Scenario scenario = busy();
  SessionWorld world(scenario, {});
  world.close(1);
}

TEST(Teardown, WithCallsOutstandingOnAllRanks) {
  const Scenario scenario = busy();
  for (const bool first_to_last : {true, false}) {
    const EndsSoon ends_soon;
    std::vector<Call> calls;  // outlive the sessions that borrow them
    SessionWorld world(scenario, slow());
    for (int i = 0; i < 4; ++i) calls.push_back(world.make_call(scenario));
    for (const Call& call : calls) world.start_all(scenario, call);
    for (int32_t i = 0; i < 3; ++i) world.close(first_to_last ? i : 2 - i);
  }
}

TEST(Teardown, WithCallsOutstandingOnOneRankThatNobodyJoins) {
  const Scenario scenario = busy();
  const EndsSoon ends_soon;
  std::vector<Call> calls;
  SessionWorld world(scenario, slow());
  for (int i = 0; i < 3; ++i) calls.push_back(world.make_call(scenario));
  for (const Call& call : calls) world.start(0, scenario, call);
}

TEST(Teardown, OfARankIsNoticedByThoseWhoWaitForIt) {
  const Scenario scenario = busy();
  const EndsSoon ends_soon;
  SessionWorld world(scenario, {});
  const Call call = world.make_call(scenario);
  world.start(0, scenario, call);
  world.start(2, scenario, call);
  world.close(1);
  for (const int32_t rank : {0, 2}) {
    try {
      world.session(rank).synchronize();
      ADD_FAILURE() << "rank " << rank << " did not notice";
    } catch (const WaitTimeout& error) {
      EXPECT_EQ(error.record().what, WaitFor::kPeerClosed);
      EXPECT_EQ(error.record().peer, 1);
      EXPECT_THAT(error.what(), Says("rank " + std::to_string(rank), "rank 1", "closed", "epoch 1"));
    }
  }
}

TEST(Teardown, ARankThatLetsGoBeforeAllHavePreparedMayPrepareAgain) {
  const Scenario scenario = busy(2);
  const EndsSoon ends_soon;
  const SessionWorld shapes(scenario, {});
  const Call call = shapes.make_call(scenario);
  const auto transports = make_in_process_world(2);
  make_cpu_executor(transports[1])->prepare(session_options(scenario, {})).reset();
  std::vector<std::unique_ptr<Session>> sessions;
  for (const auto& transport : transports) {
    sessions.push_back(make_cpu_executor(transport)->prepare(session_options(scenario, {})));
  }
  for (int32_t rank = 0; rank < 2; ++rank) {
    const auto r = static_cast<size_t>(rank);
    sessions[r]->run(call.plans[r], SessionWorld::args(scenario, call, rank));
  }
  for (const auto& session : sessions) session->synchronize();
  EXPECT_TRUE(same_bits(call.outs, exact_results(scenario)));
}

TEST(Teardown, OfARankThatNeverRanIsNoticedInTheFirstCall) {
  const Scenario scenario = busy(2);
  const EndsSoon ends_soon;
  SessionWorld world(scenario, {});
  const Call call = world.make_call(scenario);
  world.close(1);
  world.start(0, scenario, call);
  EXPECT_THAT(testing::message_of<WaitTimeout>([&] { world.session(0).synchronize(); }),
              Says("rank 0", "rank 1", "closed"));
}

TEST(Teardown, RightAfterTheLastCallDoesNotDisturbSlowerPeers) {
  const Scenario scenario = busy();
  const auto expected = exact_results(scenario);
  for (int round = 0; round < 10; ++round) {
    WorldSetup setup = slow();
    setup.cpu = {{}, slow().cpu[0], {}};  // rank 1 is slower than the others
    SessionWorld world(scenario, setup);
    const Call call = world.make_call(scenario);
    world.start_all(scenario, call);
    world.session(0).synchronize();
    world.close(0);
    world.session(2).synchronize();
    world.close(2);
    world.session(1).synchronize();
    ASSERT_TRUE(same_bits(call.outs, expected)) << "round " << round;
  }
}

TEST(Teardown, OfASlowRankInTheMiddleOfACall) {
  const Scenario scenario = busy();
  for (int round = 0; round < 10; ++round) {
    const EndsSoon ends_soon;
    std::vector<Call> calls;
    SessionWorld world(scenario, slow());
    for (int i = 0; i < 2; ++i) calls.push_back(world.make_call(scenario));
    for (const Call& call : calls) world.start_all(scenario, call);
    std::this_thread::sleep_for(std::chrono::microseconds(300 * round));
    world.close(1);
    for (const int32_t rank : {0, 2}) {
      try {
        world.session(rank).synchronize();
      } catch (const WaitTimeout& error) {  // or rank 1 had come far enough
        EXPECT_THAT(error.what(), Says("rank 1", "closed"));
      }
    }
  }
}

TEST(Teardown, AfterAFailureDoesNotWaitForThePeer) {
  const Scenario scenario = busy();
  const EndsSoon ends_soon;
  WorldSetup setup = slow();
  setup.timeout_ns = 50'000'000;
  std::vector<Call> calls;
  SessionWorld world(scenario, setup);
  calls.push_back(world.make_call(scenario));
  world.start(0, scenario, calls[0]);
  EXPECT_THROW(world.session(0).synchronize(), WaitTimeout);
  world.close(0);
  world.close(2);
  world.close(1);
}

TEST(Teardown, SessionsOutliveTheirTransportsAndExecutors) {
  // SessionWorld keeps neither.
  const Scenario scenario = busy();
  SessionWorld world(scenario, slow());
  EXPECT_TRUE(same_bits(world.run(scenario), exact_results(scenario)));
}

TEST(Teardown, OfManySessionsOneAfterAnotherInOneWorld) {
  const Scenario scenario = busy(2);
  const auto expected = exact_results(scenario);
  const auto transports = make_in_process_world(2);
  const SessionWorld shapes(scenario, {});
  for (int round = 0; round < 30; ++round) {
    const Call call = shapes.make_call(scenario);
    std::vector<std::unique_ptr<Session>> sessions;
    for (const auto& transport : transports) {
      sessions.push_back(make_cpu_executor(transport)->prepare(session_options(scenario, {})));
    }
    for (int32_t rank = 0; rank < 2; ++rank) {
      sessions[static_cast<size_t>(rank)]->run(call.plans[static_cast<size_t>(rank)],
                                               SessionWorld::args(scenario, call, rank));
    }
    for (const auto& session : sessions) session->synchronize();
    ASSERT_TRUE(same_bits(call.outs, expected)) << "round " << round;
  }
}

}  // namespace
}  // namespace tileoverlap
