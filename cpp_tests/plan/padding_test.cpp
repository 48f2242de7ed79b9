// GEMM rows per valid row: what padding per owner costs at the paper's shapes.

#include <gtest/gtest.h>

#include "support/random_routing.hpp"
#include "tileoverlap/plan/plan.hpp"

namespace tileoverlap {
namespace {

// Token t's choice i is expert (t + i * ceil(experts / top_k)) mod experts: as even as routing gets.
RouteCounts balanced(const Placement& placement, int64_t tokens, int32_t top_k) {
  const int64_t experts = placement.experts();
  std::vector<int32_t> counts(static_cast<size_t>(placement.world() * experts), 0);
  for (int32_t owner = 0; owner < placement.world(); ++owner) {
    for (int64_t token = 0; token < tokens; ++token) {
      for (int64_t choice = 0; choice < top_k; ++choice) {
        ++counts[static_cast<size_t>(owner * experts + (token + choice * ceil_div(experts, top_k)) % experts)];
      }
    }
  }
  return RouteCounts(placement, std::move(counts));
}

double rows_per_valid_row(const Placement& placement, const RouteCounts& counts, Layout layout) {
  int64_t rows = 0, valid = 0;
  for (const Plan& plan : testing::make_plans(placement, counts, 8192, {.tile_m = 128, .layout = layout})) {
    rows += plan->gemm_rows;
    valid += plan->valid_rows;
  }
  return static_cast<double>(rows) / static_cast<double>(valid);
}

TEST(Padding, At64ExpertsARankOwnerAlignedWorksOnThreeQuartersMoreRows) {
  const Placement placement = Placement::even(4, 256);
  const RouteCounts counts = balanced(placement, 8192, 2);
  EXPECT_EQ(counts.at(3, 200), 64);
  EXPECT_DOUBLE_EQ(rows_per_valid_row(placement, counts, Layout::kOwnerAligned), 1.75);
  EXPECT_DOUBLE_EQ(rows_per_valid_row(placement, counts, Layout::kCompact), 1.0);
}

TEST(Padding, At16ExpertsARankBothLayoutsWorkOnValidRowsOnly) {
  const Placement placement = Placement::even(4, 64);
  const RouteCounts counts = balanced(placement, 8192, 2);
  EXPECT_DOUBLE_EQ(rows_per_valid_row(placement, counts, Layout::kOwnerAligned), 1.0);
  EXPECT_DOUBLE_EQ(rows_per_valid_row(placement, counts, Layout::kCompact), 1.0);
}

TEST(Padding, OfADecodeBatchIsManyTimesTheWork) {
  const Placement placement = Placement::even(8, 256);
  const RouteCounts counts = balanced(placement, 128, 8);
  EXPECT_GT(rows_per_valid_row(placement, counts, Layout::kOwnerAligned), 20.0);
  EXPECT_DOUBLE_EQ(rows_per_valid_row(placement, counts, Layout::kCompact), 1.0);
}

}  // namespace
}  // namespace tileoverlap
