// Waits on a GPU end at their limit, say who was waited for, and leave the GPU usable.

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "support/compare.hpp"
#include "support/gpu_checks.hpp"
#include "support/gpu_world.hpp"
#include "support/messages.hpp"

namespace tileoverlap {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;
using testing::failure_of;
using testing::GpuCall;
using testing::GpuLayerCall;
using testing::GpuLayerWorld;
using testing::GpuSessionWorld;
using testing::GpuSetup;
using testing::LayerInputs;
using testing::make_scenario;
using testing::message_of;
using testing::Random;
using testing::run_on_gpu;
using testing::same_bits;
using testing::Says;
using testing::Scenario;

constexpr int64_t kLimit = 300'000'000;

GpuSetup limited(int64_t limit_ns = kLimit) {
  GpuSetup setup;
  setup.timeout_ns = limit_ns;
  return setup;
}

// The rank's share of faults, none on the others.
GpuSetup withholding(int32_t ranks, int32_t rank, int32_t band) {
  GpuSetup setup = limited();
  setup.cuda = std::vector<CudaOptions>(static_cast<size_t>(ranks));
  setup.cuda[static_cast<size_t>(rank)].faults.withhold_band = band;
  return setup;
}

// Every token's copies go to all ranks' experts in turn, so that every rank waits for every other one.
Scenario all_to_all(int32_t ranks, int64_t tokens) {
  Random random(1);
  const Placement placement = Placement::even(ranks, 2 * ranks);
  Scenario scenario = make_scenario(
      random, {.placement = placement, .top_k = 2, .tokens = std::vector<int64_t>(static_cast<size_t>(ranks), tokens)});
  for (auto& ids : scenario.ids) {
    for (int64_t i = 0; i < ids.elements(); ++i) ids.put(i, i % placement.experts());
  }
  return scenario;
}

// Checks that waiting ended after the limit and soon after it, and that the GPU still works.
class GpuWaitLimits : public ::testing::Test {
 protected:
  void SetUp() override { TILEOVERLAP_NEEDS_GPU(); }
  void TearDown() override {
    if (IsSkipped()) return;
    const Scenario scenario = all_to_all(3, 20);
    EXPECT_TRUE(close_to_fp64(run_on_gpu(scenario, {}), scenario)) << "a new world does not work";
  }
};

class Stopwatch {
 public:
  explicit Stopwatch(int64_t at_least_ns = kLimit) : at_least_ns_(at_least_ns) {}
  ~Stopwatch() {
    const auto took = steady_clock::now() - begin_;
    EXPECT_GE(took, std::chrono::nanoseconds(at_least_ns_));
    EXPECT_LT(took, seconds(3));
  }

 private:
  int64_t at_least_ns_;
  steady_clock::time_point begin_ = steady_clock::now();
};

TEST_F(GpuWaitLimits, AWithheldBandIsNamedOnItsRankAndOnItsPeers) {
  const Scenario scenario = all_to_all(3, 24);
  GpuSessionWorld world(scenario, withholding(3, 1, 0));
  const GpuCall call = world.make_call(scenario);
  const int32_t expert = scenario.placement.begin(1);
  {
    const Stopwatch stopwatch;
    world.start_all(call);
    const WaitTimeout here = failure_of(world.session(1));
    EXPECT_EQ(here.record().what, WaitFor::kBand);
    EXPECT_EQ(here.record().rank, 1);
    EXPECT_EQ(here.record().band, 0);
    EXPECT_EQ(here.record().expert, expert);
    EXPECT_EQ(here.record().epoch, 1u);
    EXPECT_EQ(here.record().seen, 0u);
    EXPECT_EQ(here.record().expected, 1u);
    EXPECT_EQ(here.raised_on(), 1);
    EXPECT_THAT(here.what(),
                Says("rank 1", "consume", "expert " + std::to_string(expert), "band 0", "epoch 1", "0.3 s"));
    for (const int32_t rank : {0, 2}) {
      const WaitTimeout there = failure_of(world.session(rank));
      EXPECT_EQ(there.record().what, WaitFor::kBand);
      EXPECT_EQ(there.raised_on(), rank);
      EXPECT_THAT(there.what(), Says("rank " + std::to_string(rank), "told by rank 1",
                                     "expert " + std::to_string(expert), "band 0", "epoch 1"));
    }
  }
  // Unusable from now on, with the same words; nothing was summed.
  for (int32_t rank = 0; rank < 3; ++rank) {
    const std::string said = failure_of(world.session(rank)).what();
    EXPECT_EQ(message_of<WaitTimeout>([&] { world.session(rank).check(); }), said);
    EXPECT_EQ(message_of<WaitTimeout>([&] { world.start(rank, call); }), said);
  }
  EXPECT_TRUE(all_nan(GpuSessionWorld::outs(call)));
}

TEST_F(GpuWaitLimits, AWithheldBandOfALaterCallNamesItsEpoch) {
  const Scenario few = all_to_all(2, 4), many = all_to_all(2, 1024);  // 1,024 rows an expert: 8 bands
  GpuSetup setup = withholding(2, 0, 3);
  setup.max_tokens = 1024;
  GpuSessionWorld world(few, setup);
  for (int call = 0; call < 2; ++call) ASSERT_TRUE(close_to_fp64(world.run(few), few));  // no band 3
  const GpuCall call = world.make_call(many);
  world.start_all(call);
  const WaitTimeout error = failure_of(world.session(0));
  EXPECT_EQ(error.record().band, 3);
  EXPECT_THAT(error.what(), Says("rank 0", "band 3", "epoch 3", "needed 3"));
  EXPECT_THAT(failure_of(world.session(1)).what(), Says("rank 1", "told by rank 0", "band 3"));
}

TEST_F(GpuWaitLimits, AWithheldBandIsNamedInSerialModeToo) {
  const Scenario scenario = all_to_all(2, 24);
  GpuSessionWorld world(scenario, withholding(2, 1, 0));
  const GpuCall call = world.make_call(scenario);
  const Stopwatch stopwatch;
  world.start_all(call, RunMode::kSerial);
  EXPECT_THAT(failure_of(world.session(1)).what(), Says("rank 1", "band 0"));
  EXPECT_THAT(failure_of(world.session(0)).what(), Says("told by rank 1", "band 0"));
}

TEST_F(GpuWaitLimits, ARankThatNeverRunsIsNamedByAllOthers) {
  const Scenario scenario = all_to_all(4, 8);
  GpuSessionWorld world(scenario, limited());
  const GpuCall call = world.make_call(scenario);
  const Stopwatch stopwatch;
  for (const int32_t rank : {0, 1, 3}) world.start(rank, call);
  for (const int32_t rank : {0, 1, 3}) {
    const WaitTimeout error = failure_of(world.session(rank));
    EXPECT_EQ(error.record().peer, 2);
    EXPECT_EQ(error.record().what, WaitFor::kArrival);
    EXPECT_THAT(error.what(), Says("rank " + std::to_string(rank), "rank 2", "epoch 1", "0 of 128 bytes"));
  }
}

TEST_F(GpuWaitLimits, ARankThatNeverPreparesIsNamed) {
  const Scenario scenario = all_to_all(2, 4);
  GpuSessionWorld shapes(scenario, {});
  const GpuCall call = shapes.make_call(scenario);
  testing::WorldSetup cpu;  // for the options
  cpu.plan = GpuSetup().plan;
  cpu.timeout_ns = kLimit;
  const auto session = make_cuda_executor(make_device_world({0, 0})[0])->prepare(session_options(scenario, cpu));
  const Stopwatch stopwatch;
  const std::string said = message_of<WaitTimeout>([&] {
    session->run(call.plans[0], shapes.args(call, 0));
    session->synchronize();
  });
  EXPECT_THAT(said, Says("rank 0", "rank 1", "transport", "memory"));
}

TEST_F(GpuWaitLimits, ARankThatRunsFewerCallsIsNamedWithTheCallItMissed) {
  const Scenario scenario = all_to_all(2, 6);
  GpuSessionWorld world(scenario, limited());
  std::vector<GpuCall> calls;
  for (int i = 0; i < 3; ++i) calls.push_back(world.make_call(scenario));
  for (const GpuCall& call : calls) world.start(0, call);
  for (size_t i = 0; i < 2; ++i) world.start(1, calls[i]);
  EXPECT_THAT(failure_of(world.session(0)).what(), Says("rank 0", "rank 1", "epoch 3"));
  for (size_t i = 0; i < 2; ++i) EXPECT_TRUE(close_to_fp64(GpuSessionWorld::outs(calls[i]), scenario));
}

TEST_F(GpuWaitLimits, ACreditThatNeverComesNamesTheOwner) {
  // Rank 0 only sends: its first call needs nobody, its second may not overwrite what rank 1 never read.
  Random random(2);
  Scenario scenario =
      make_scenario(random, {.placement = Placement::from_begins({0, 1, 1}), .top_k = 1, .tokens = {0, 6}});
  set_all_ids(scenario, 0);
  GpuSessionWorld world(scenario, limited());
  const GpuCall call = world.make_call(scenario);
  world.start(0, call);
  world.session(0).synchronize();
  world.start(0, call);
  const WaitTimeout error = failure_of(world.session(0));
  EXPECT_EQ(error.record().what, WaitFor::kCredit);
  EXPECT_THAT(error.what(), Says("rank 0", "rank 1", "credit", "epoch 2", "saw epoch 0", "needed 1"));
}

TEST_F(GpuWaitLimits, APeerLearnsOfAFailureInItsNextCallAtOnce) {
  const Scenario scenario = all_to_all(2, 6);
  GpuSessionWorld world(scenario, limited());
  const GpuCall call = world.make_call(scenario);
  world.start(0, call);
  failure_of(world.session(0));
  const auto begin = steady_clock::now();
  try {
    world.start(1, call);
    world.session(1).synchronize();
    ADD_FAILURE() << "rank 1 did not notice";
  } catch (const WaitTimeout& error) {
    EXPECT_THAT(error.what(), Says("rank 1", "rank 0"));
  }
  EXPECT_LT(steady_clock::now() - begin, milliseconds(200));
}

TEST_F(GpuWaitLimits, EndTheCallsThatWereQueuedBehindTheFailedOne) {
  const Scenario scenario = all_to_all(2, 6);
  GpuSessionWorld world(scenario, limited());
  std::vector<GpuCall> calls;
  for (int i = 0; i < 4; ++i) calls.push_back(world.make_call(scenario));
  {
    const Stopwatch stopwatch;  // one limit, not four
    for (const GpuCall& call : calls) world.start(0, call);
    EXPECT_THAT(failure_of(world.session(0)).what(), Says("rank 1", "epoch 1"));
  }
  for (const GpuCall& call : calls) EXPECT_TRUE(all_nan(GpuSessionWorld::outs(call)));  // no half-made result
}

TEST_F(GpuWaitLimits, AClosedRankIsNoticedByThoseWhoWaitForIt) {
  const Scenario scenario = all_to_all(3, 8);
  for (const bool after_a_call : {false, true}) {
    GpuSessionWorld world(scenario, {});
    if (after_a_call) world.run(scenario);
    const GpuCall call = world.make_call(scenario);
    const Stopwatch stopwatch(0);  // limits are a minute
    world.start(0, call);
    world.start(2, call);
    world.close(1);
    for (const int32_t rank : {0, 2}) {
      const WaitTimeout error = failure_of(world.session(rank));
      EXPECT_EQ(error.record().what, WaitFor::kPeerClosed);
      EXPECT_EQ(error.record().peer, 1);
      EXPECT_THAT(error.what(), Says("rank " + std::to_string(rank), "rank 1", "closed"));
    }
  }
}

TEST_F(GpuWaitLimits, ClosingRightAfterTheLastCallDisturbsNobody) {
  const Scenario scenario = all_to_all(3, 20);
  for (int round = 0; round < 5; ++round) {
    GpuSetup setup;
    setup.cuda = std::vector<CudaOptions>(3);
    setup.cuda[1].faults = {.shuffle_seed = 3, .max_delay_us = 500};  // slower than the others
    GpuSessionWorld world(scenario, setup);
    const GpuCall call = world.make_call(scenario);
    world.start_all(call);
    world.session(0).synchronize();
    world.close(0);
    world.session(2).synchronize();
    world.close(2);
    world.session(1).synchronize();
    ASSERT_TRUE(close_to_fp64(GpuSessionWorld::outs(call), scenario)) << "round " << round;
  }
}

TEST_F(GpuWaitLimits, WorldsWithCallsOutstandingCanBeDestroyed) {
  const Scenario scenario = all_to_all(3, 20);
  for (int round = 0; round < 4; ++round) {
    std::vector<GpuCall> calls;  // outlive the sessions that borrow them
    GpuSetup setup = testing::disordered(1, 300);
    setup.timeout_ns = 1'000'000'000;  // in the last two rounds somebody waits for a call that nobody makes
    GpuSessionWorld world(scenario, setup);
    for (int i = 0; i < 3; ++i) calls.push_back(world.make_call(scenario));
    const Stopwatch stopwatch(0);
    for (int32_t i = 0; i < 3; ++i) {
      for (int32_t rank = 0; rank < 3; ++rank) {
        if (rank < 2 || i < 2 || round < 2) world.start(rank, calls[static_cast<size_t>(i)]);
      }
    }
    if (round % 2 == 0) {  // from last to first
      for (int32_t rank = 2; rank >= 0; --rank) world.close(rank);
    } else {
      for (int32_t rank = 0; rank < 3; ++rank) world.close(rank);
    }
  }
}

TEST_F(GpuWaitLimits, ARankThatStartsTwoSecondsLateIsForgiven) {
  const Scenario scenario = all_to_all(2, 6);
  GpuSessionWorld world(scenario, limited(10'000'000'000));
  const GpuCall call = world.make_call(scenario);
  world.start(0, call);
  std::this_thread::sleep_for(seconds(2));
  world.session(0).check();
  world.start(1, call);
  world.synchronize_all();
  EXPECT_TRUE(close_to_fp64(GpuSessionWorld::outs(call), scenario));
}

TEST_F(GpuWaitLimits, WaitAndCheckDoNotWaitLongerThanAsked) {
  const Scenario scenario = all_to_all(2, 6);
  GpuSessionWorld world(scenario, limited(60'000'000'000));
  const GpuCall call = world.make_call(scenario);
  EXPECT_TRUE(world.session(0).wait(0));  // no run so far
  const auto before = steady_clock::now();
  world.start(0, call);
  world.session(0).check();
  EXPECT_FALSE(world.session(0).wait(0));
  EXPECT_FALSE(world.session(0).wait(-1));
  const auto begin = steady_clock::now();
  EXPECT_LT(begin - before, seconds(1));
  EXPECT_FALSE(world.session(0).wait(50'000'000));
  EXPECT_GE(steady_clock::now() - begin, milliseconds(50));
  world.start(1, call);
  EXPECT_TRUE(world.session(0).wait(60'000'000'000));
  EXPECT_TRUE(world.session(1).wait(60'000'000'000));
  EXPECT_TRUE(close_to_fp64(GpuSessionWorld::outs(call), scenario));
}

TEST_F(GpuWaitLimits, RanksWithOtherPlansAreToldThoughTheirBytesAddUp) {
  Random random(3);
  Scenario scenario = make_scenario(random, {.placement = Placement::even(2, 4), .top_k = 1, .tokens = {8, 9}});
  set_ids(scenario, 0, {0, 1, 2, 3, 0, 1, 2, 3});
  set_ids(scenario, 1, {0, 0, 0, 1, 1, 2, 2, 3, 3});
  GpuSessionWorld world(scenario, {});
  GpuCall call = world.make_call(scenario);
  // Rank 0 believes that rank 1 sends two copies to expert 0 and three to expert 1: five rows all the same.
  call.plans[0] =
      make_plan(scenario.placement, 0, RouteCounts(scenario.placement, {2, 2, 2, 2, /* owner 1 */ 2, 3, 2, 2}),
                scenario.n, GpuSetup().plan);
  const Stopwatch stopwatch(0);
  world.start_all(call);
  for (int32_t rank = 0; rank < 2; ++rank) {
    const WaitTimeout error = failure_of(world.session(rank));
    EXPECT_EQ(error.record().what, WaitFor::kSamePlan);
    EXPECT_THAT(error.what(), Says("rank 0", "rank 1", "epoch 1", "plan", "counts"));
  }
  EXPECT_TRUE(all_nan(GpuSessionWorld::outs(call)));  // no sum of wrong rows
}

TEST_F(GpuWaitLimits, AFailureLeavesAnotherSessionOfTheSameWorldAlone) {
  const Scenario scenario = all_to_all(2, 6);
  GpuSessionWorld shapes(scenario, {});
  const GpuCall call = shapes.make_call(scenario);
  testing::WorldSetup cpu;  // for the options
  cpu.plan = GpuSetup().plan;
  cpu.timeout_ns = kLimit;
  std::vector<std::unique_ptr<Session>> failing, working;
  for (const auto& transport : make_device_world({0, 0})) {
    const auto executor = make_cuda_executor(transport);
    failing.push_back(executor->prepare(session_options(scenario, cpu)));
    working.push_back(executor->prepare(session_options(scenario, cpu)));
  }
  failing[0]->run(call.plans[0], shapes.args(call, 0));
  failure_of(*failing[0]);
  for (int32_t rank = 0; rank < 2; ++rank) {
    const auto r = static_cast<size_t>(rank);
    working[r]->run(call.plans[r], shapes.args(call, rank));
  }
  for (const auto& session : working) session->synchronize();
  EXPECT_TRUE(close_to_fp64(GpuSessionWorld::outs(call), scenario));
}

LayerInputs small_layer(int32_t ranks) {
  Random random(4);
  LayerInputs inputs = make_layer_inputs(random, {.placement = Placement::even(ranks, ranks),
                                                  .expert = ExpertKind::kGelu,
                                                  .top_k = ranks,
                                                  .tokens = std::vector<int64_t>(static_cast<size_t>(ranks), 3)});
  for (testing::HostTensor& ids : inputs.ids) {
    for (int64_t i = 0; i < ids.elements(); ++i) ids.put(i, i % ranks);
  }
  return inputs;
}

TEST_F(GpuWaitLimits, ALayerNamesTheRankThatNeverCalls) {
  const LayerInputs inputs = small_layer(3);
  GpuLayerWorld world(inputs, limited());
  const GpuLayerCall call = GpuLayerWorld::make_call(inputs);
  const Stopwatch stopwatch;
  for (const int32_t rank : {0, 2}) world.start(rank, call);
  for (const int32_t rank : {0, 2}) {
    const WaitTimeout error = failure_of(world.layer(rank));
    EXPECT_EQ(error.record().what, WaitFor::kCounts);
    EXPECT_EQ(error.record().peer, 1);
    EXPECT_THAT(error.what(), Says("rank " + std::to_string(rank), "routing", "rank 1", "epoch 1", "0.3 s"));
  }
  EXPECT_THROW(world.start(0, call), WaitTimeout);  // the layer cannot be used again
  EXPECT_THROW(world.layer(0).check(), WaitTimeout);
}

TEST_F(GpuWaitLimits, ALayerNamesAWithheldBand) {
  const LayerInputs inputs = small_layer(2);
  GpuLayerWorld world(inputs, withholding(2, 0, 0));
  const GpuLayerCall call = GpuLayerWorld::make_call(inputs);
  world.start_all(call);
  EXPECT_THAT(failure_of(world.layer(0)).what(), Says("rank 0", "expert 0", "band 0", "epoch 1"));
  EXPECT_THAT(failure_of(world.layer(1)).what(), Says("rank 1", "rank 0", "band 0", "epoch 1"));
  EXPECT_TRUE(all_nan(GpuLayerWorld::outs(call)));
}

TEST_F(GpuWaitLimits, ALayerNoticesARankThatCloses) {
  const LayerInputs inputs = small_layer(3);
  GpuLayerWorld world(inputs, {});
  const GpuLayerCall call = GpuLayerWorld::make_call(inputs);
  const Stopwatch stopwatch(0);  // limits are a minute
  world.start(0, call);
  world.start(1, call);
  world.close(2);
  for (const int32_t rank : {0, 1}) EXPECT_THAT(failure_of(world.layer(rank)).what(), Says("rank 2", "closed"));
}

}  // namespace
}  // namespace tileoverlap
