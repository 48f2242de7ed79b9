// Ranks that run different plans in one step are told so, before anybody sums rows that are not what they seem.

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "support/compare.hpp"
#include "support/messages.hpp"
#include "support/session_world.hpp"

namespace tileoverlap {
namespace {

using testing::Call;
using testing::make_scenario;
using testing::message_of;
using testing::Random;
using testing::Says;
using testing::Scenario;
using testing::SessionWorld;

// Two experts on each of two ranks; rank 0 sends two copies to each, rank 1 three to expert 0 and two to expert 1.
Scenario small() {
  Random random(1);
  Scenario scenario = make_scenario(random, {.placement = Placement::even(2, 4), .top_k = 1, .tokens = {8, 9}});
  set_ids(scenario, 0, {0, 1, 2, 3, 0, 1, 2, 3});
  set_ids(scenario, 1, {0, 0, 0, 1, 1, 2, 2, 3, 3});
  return scenario;
}

TEST(SamePlan, RanksWithOtherCountsAreToldThoughTheirBytesAddUp) {
  const Scenario scenario = small();
  SessionWorld world(scenario, {});
  Call call = world.make_call(scenario);
  // Rank 0 believes that rank 1 sends two copies to expert 0 and three to expert 1: five rows all the same.
  call.plans[0] =
      make_plan(scenario.placement, 0, RouteCounts(scenario.placement, {2, 2, 2, 2, /* owner 1 */ 2, 3, 2, 2}),
                scenario.n, world.options().plan);
  testing::HostTensor rows(scenario.dtype, {call.plans[0]->rows, scenario.k});
  call.rows[0] = std::move(rows);
  world.start_all(scenario, call);
  for (int32_t rank = 0; rank < 2; ++rank) {
    try {
      world.session(rank).synchronize();
      ADD_FAILURE() << "rank " << rank << " did not notice";
    } catch (const WaitTimeout& error) {
      EXPECT_EQ(error.record().what, WaitFor::kSamePlan);
      EXPECT_THAT(error.what(), Says("rank 0", "rank 1", "epoch 1", "plan", "counts"));
    }
  }
  EXPECT_TRUE(std::isnan(call.outs[0].get(0)) && std::isnan(call.outs[1].get(0)));  // no sum of wrong rows
}

TEST(SamePlan, ARankThatIsACallBehindIsTold) {
  // Equal numbers of rows in both calls, so that no wait would expire.
  Scenario first = small();
  Scenario second = small();
  set_ids(second, 1, {0, 0, 1, 1, 1, 2, 2, 3, 3});
  SessionWorld world(first, {});
  const Call call_1 = world.make_call(first), call_2 = world.make_call(second);
  world.start(0, first, call_1);
  world.start(1, second, call_2);  // rank 1 has left out a call
  EXPECT_THAT(message_of<WaitTimeout>([&] { world.session(0).synchronize(); }),
              Says("rank 0", "rank 1", "another plan"));
  EXPECT_THAT(message_of<WaitTimeout>([&] { world.session(1).synchronize(); }),
              Says("rank 0", "rank 1", "another plan"));
}

TEST(SamePlan, PlansOfOneRoutingHaveOneFingerprint) {
  const Scenario scenario = small();
  const RouteCounts counts = counts_of(scenario);
  const PlanOptions options{.tile_m = 4, .tile_n = 8};
  const auto fingerprint = [&](int32_t rank, const RouteCounts& of, int64_t n, const PlanOptions& with) {
    return make_plan(scenario.placement, rank, of, n, with)->fingerprint;
  };
  const uint64_t one = fingerprint(0, counts, 16, options);
  EXPECT_EQ(fingerprint(1, counts, 16, options), one);
  // How a rank cuts its segments is its own affair.
  EXPECT_EQ(fingerprint(0, counts, 16, {.tile_m = 4, .tile_n = 8, .bands_per_segment = 3, .group = 2}), one);
  std::vector<int32_t> values(counts.values().begin(), counts.values().end());
  std::swap(values[4], values[5]);
  EXPECT_NE(fingerprint(0, RouteCounts(scenario.placement, values), 16, options), one);
  EXPECT_NE(fingerprint(0, counts, 24, options), one);
}

}  // namespace
}  // namespace tileoverlap
