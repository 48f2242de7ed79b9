// What a plan costs: a millisecond at most, and nothing for copies.

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <vector>

#include "support/build_kind.hpp"
#include "tileoverlap/plan/plan.hpp"

namespace tileoverlap {
namespace {

using std::chrono::steady_clock;

// Median time of a plan for eight ranks and 256 experts, each of which gets `copies` from each owner.
std::chrono::nanoseconds median_cost(int32_t copies, int32_t tile_m) {
  const Placement placement = Placement::even(8, 256);
  const RouteCounts counts(placement, std::vector<int32_t>(8 * 256, copies));
  std::vector<std::chrono::nanoseconds> times;
  for (int i = 0; i < 101; ++i) {
    const auto begin = steady_clock::now();
    const Plan plan = make_plan(placement, i % 8, counts, 7168, {.tile_m = tile_m});
    times.push_back(steady_clock::now() - begin);
    EXPECT_EQ(plan->valid_rows, int64_t{8} * 32 * copies);
  }
  std::nth_element(times.begin(), times.begin() + 50, times.end());
  return times[50];
}

TEST(PlanCost, Of65536CopiesARankIsUnderAMillisecond) {
  if (!testing::kTimed) GTEST_SKIP() << "needs an optimised build without sanitizers";
  EXPECT_LT(median_cost(256, 128), std::chrono::milliseconds(1));
}

TEST(PlanCost, DoesNotGrowWithCopies) {
  if (!testing::kTimed) GTEST_SKIP() << "needs an optimised build without sanitizers";
  // The same 64 bands an expert for 2^6 and for 2^20 copies: a cost per copy would be thousands of times higher.
  EXPECT_LT(median_cost(1 << 20, 1 << 17), 5 * median_cost(1 << 6, 1 << 3));
}

}  // namespace
}  // namespace tileoverlap
