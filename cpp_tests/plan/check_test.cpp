// check_plan and check_plans hold for every plan that make_plan makes.

#include "tileoverlap/plan/check.hpp"

#include <gtest/gtest.h>

#include "support/messages.hpp"
#include "support/random_routing.hpp"

namespace tileoverlap {
namespace {

using testing::Random;
using testing::Says;

std::string joined(const std::vector<std::string>& findings) {
  std::string all;
  for (const std::string& finding : findings) all += finding + '\n';
  return all;
}

TEST(CheckPlans, HoldsForRandomCounts) {
  Random random(71);
  for (int round = 0; round < 600; ++round) {
    const Placement placement = testing::random_placement(random);
    const RouteCounts counts = testing::random_counts(random, placement);
    const PlanOptions options = testing::random_options(random);
    const auto plans = testing::make_plans(placement, counts, random.between(1, 100), options);
    for (const Plan& plan : plans) ASSERT_EQ(joined(check_plan(plan, counts)), "") << plan.repr();
    ASSERT_EQ(joined(check_plans(plans, counts)), "") << placement.repr() << ' ' << repr(options);
  }
}

TEST(CheckPlans, HoldsForNothingAtAll) {
  for (const int32_t experts : {0, 1, 8}) {
    const Placement placement = Placement::even(4, experts);
    const RouteCounts counts(placement, std::vector<int32_t>(static_cast<size_t>(4 * experts), 0));
    EXPECT_EQ(joined(check_plans(testing::make_plans(placement, counts, 8, {}), counts)), "");
  }
}

TEST(CheckPlans, FindsAPlanThatWasMadeForOtherCounts) {
  const Placement placement = Placement::even(2, 2);
  const RouteCounts made_for(placement, {3, 4, 5, 6}), asked_for(placement, {3, 4, 6, 5});
  const Plan plan = make_plan(placement, 0, made_for, 8);
  EXPECT_EQ(joined(check_plan(plan, made_for)), "");
  EXPECT_THAT(joined(check_plan(plan, asked_for)), Says("expert 0", "owner 1", "5", "6"));
}

TEST(CheckPlans, NamesTheRankWhosePlanIsWrong) {
  const Placement placement = Placement::even(2, 2);
  const RouteCounts right(placement, {3, 4, 5, 6}), wrong(placement, {3, 4, 5, 7});
  const std::vector<Plan> plans = {make_plan(placement, 0, right, 8), make_plan(placement, 1, wrong, 8)};
  EXPECT_THAT(joined(check_plans(plans, right)), Says("rank 1"));
}

TEST(CheckPlans, WantsThePlanOfEveryRankInOrder) {
  const Placement placement = Placement::even(3, 3);
  const RouteCounts counts(placement, std::vector<int32_t>(9, 4));
  auto plans = testing::make_plans(placement, counts, 8, {});
  ASSERT_EQ(joined(check_plans(plans, counts)), "");
  std::swap(plans[0], plans[2]);
  EXPECT_NE(joined(check_plans(plans, counts)), "");
  std::swap(plans[0], plans[2]);
  plans.pop_back();
  EXPECT_NE(joined(check_plans(plans, counts)), "");
}

}  // namespace
}  // namespace tileoverlap
