// Rows, owners and staging of random plans against a table that is written row by row.

#include "support/row_table.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "support/random_routing.hpp"

namespace tileoverlap {
namespace {

using testing::make_plans;
using testing::Random;
using testing::RowUse;
using testing::write_row_table;

// What the table says of each expert on the rank.
struct ExpertSummary {
  int64_t row_begin = 0, rows = 0, valid_rows = 0;
  int32_t bands = 0, remote_bands = 0;
};

ExpertSummary summarize(const std::vector<RowUse>& table, int32_t expert, int32_t rank, int64_t begin, int32_t tile_m) {
  ExpertSummary summary{.row_begin = begin};
  for (size_t row = static_cast<size_t>(begin); row < table.size() && table[row].expert == expert; ++row) {
    const auto in_expert = static_cast<int64_t>(row) - begin;
    if (table[row].worked) summary.rows = in_expert + 1;
    summary.valid_rows += table[row].owner >= 0 ? 1 : 0;
    summary.bands = static_cast<int32_t>(in_expert / tile_m + 1);
    if (table[row].owner >= 0 && table[row].owner != rank) summary.remote_bands = summary.bands;
  }
  return summary;
}

TEST(RowTable, AgreesWithEveryFieldOfThePlan) {
  Random random(21);
  for (int round = 0; round < 400; ++round) {
    const Placement placement = testing::random_placement(random);
    const RouteCounts counts = testing::random_counts(random, placement);
    const PlanOptions options = testing::random_options(random);
    for (const Plan& plan : make_plans(placement, counts, 24, options)) {
      const auto table = write_row_table(placement, plan->rank, counts, options);
      ASSERT_EQ(plan->rows, static_cast<int64_t>(table.size())) << plan.repr();
      int64_t begin = 0, gemm_rows = 0, valid_rows = 0;
      for (const ExpertRows& expert : plan->experts) {
        const ExpertSummary summary = summarize(table, expert.expert, plan->rank, begin, options.tile_m);
        ASSERT_EQ(expert.row_begin, summary.row_begin);
        ASSERT_EQ(expert.first_band, summary.row_begin / options.tile_m);
        ASSERT_EQ(expert.rows, summary.rows);
        ASSERT_EQ(expert.valid_rows, summary.valid_rows);
        ASSERT_EQ(expert.bands, summary.bands);
        ASSERT_EQ(expert.remote_bands, summary.remote_bands);
        begin += int64_t{summary.bands} * options.tile_m;
        gemm_rows += summary.rows;
        valid_rows += summary.valid_rows;
      }
      ASSERT_EQ(plan->gemm_rows, gemm_rows);
      ASSERT_EQ(plan->valid_rows, valid_rows);
    }
  }
}

TEST(RowTable, AgreesWithEveryRunSeenFromBothSides) {
  Random random(22);
  for (int round = 0; round < 300; ++round) {
    const Placement placement = testing::random_placement(random);
    const RouteCounts counts = testing::random_counts(random, placement);
    const PlanOptions options = testing::random_options(random);
    const auto plans = make_plans(placement, counts, 24, options);
    for (const Plan& plan : plans) {
      const auto table = write_row_table(placement, plan->rank, counts, options);
      std::vector<int64_t> dispatched(plans.size(), 0), returned(plans.size(), 0);
      for (size_t row = 0; row < table.size(); ++row) {
        const RowUse& use = table[row];
        if (use.owner < 0) continue;
        const auto owner = static_cast<size_t>(use.owner);
        const auto expert = static_cast<size_t>(use.expert);
        const auto& run = plan.run(use.expert, use.owner);
        ASSERT_EQ(run.row_begin + use.copy, static_cast<int64_t>(row));
        ASSERT_EQ(run.remote_row + use.copy, use.staging);
        ASSERT_LT(use.copy, run.row_count);
        ASSERT_EQ(plans[owner]->dispatch_row[expert] + use.copy, static_cast<int64_t>(row));
        ASSERT_EQ(plans[owner]->staging_row[expert] + use.copy, use.staging);
        ++dispatched[owner];
        returned[owner] += use.owner == plan->rank ? 0 : 1;
      }
      ASSERT_EQ(plan->dispatched_rows, dispatched);
      for (size_t owner = 0; owner < plans.size(); ++owner) {
        ASSERT_EQ(plans[owner]->returned_rows[static_cast<size_t>(plan->rank)], returned[owner]);
        ASSERT_EQ(plan->copies_of[owner], counts.copies_of(static_cast<int32_t>(owner)));
      }
    }
  }
}

TEST(RowTable, HoldsEachOfAPlansRowsInAtMostOneRun) {
  Random random(23);
  for (int round = 0; round < 200; ++round) {
    const Placement placement = testing::random_placement(random);
    const RouteCounts counts = testing::random_counts(random, placement);
    const PlanOptions options = testing::random_options(random);
    for (const Plan& plan : make_plans(placement, counts, 24, options)) {
      std::vector<int> used(static_cast<size_t>(plan->rows), 0);
      for (const auto& run : plan->runs) {
        for (int64_t row = run.row_begin; row < run.row_begin + run.row_count; ++row) {
          ++used.at(static_cast<size_t>(row));
        }
        const bool padded = options.layout == Layout::kOwnerAligned && run.owner != plan->rank;
        ASSERT_EQ(padded ? run.row_begin % options.tile_m : 0, 0);
      }
      ASSERT_LE(used.empty() ? 0 : *std::max_element(used.begin(), used.end()), 1);
    }
  }
}

}  // namespace
}  // namespace tileoverlap
