// Where rows lie, worked out by hand for both layouts.
//
// Three ranks, experts {0, 1} on rank 0, {2} on rank 1, {3} on rank 2; tile_m = 4, N = 6 in tiles of 4 columns.

#include <gtest/gtest.h>

#include <tuple>
#include <vector>

#include "support/random_routing.hpp"
#include "tileoverlap/plan/plan.hpp"

namespace tileoverlap {
namespace {

const Placement kPlacement = Placement::from_begins({0, 2, 3, 4});
//                                                  expert 0  1  2  3
const RouteCounts kCounts(kPlacement, /* owner 0 */ {3, 1, 2, 4,
                                                     /* owner 1 */ 5, 0, 1, 0,
                                                     /* owner 2 */ 2, 6, 3, 1});

Plan plan_of(int32_t rank, Layout layout) {
  return make_plan(kPlacement, rank, kCounts, 6, {.tile_m = 4, .tile_n = 4, .layout = layout});
}

using RunRow = std::tuple<int32_t, int32_t, int64_t, int64_t, int64_t>;  // expert, owner, begin, count, remote
std::vector<RunRow> runs_of(const Plan& plan) {
  std::vector<RunRow> rows;
  for (const auto& run : plan->runs)
    rows.emplace_back(run.expert, run.owner, run.row_begin, run.row_count, run.remote_row);
  return rows;
}

using ExpertRow = std::tuple<int32_t, int32_t, int32_t, int32_t, int64_t, int64_t, int64_t>;
std::vector<ExpertRow> experts_of(const Plan& plan) {
  std::vector<ExpertRow> rows;
  for (const ExpertRows& e : plan->experts) {
    rows.emplace_back(e.expert, e.first_band, e.bands, e.remote_bands, e.row_begin, e.rows, e.valid_rows);
  }
  return rows;
}

TEST(RowLayout, PadsEachRemoteRunToTileHeight) {
  const Plan plan = plan_of(0, Layout::kOwnerAligned);
  EXPECT_EQ(runs_of(plan), (std::vector<RunRow>{{0, 1, 0, 5, 0},   // rows 0..4, padded to 8
                                                {0, 2, 8, 2, 0},   // rows 8..9, padded to 12
                                                {0, 0, 12, 3, 0},  // local last, not padded
                                                {1, 1, 16, 0, 5},
                                                {1, 2, 16, 6, 2},
                                                {1, 0, 24, 1, 3}}));
  EXPECT_EQ(experts_of(plan), (std::vector<ExpertRow>{{0, 0, 4, 3, 0, 15, 10}, {1, 4, 3, 2, 16, 9, 7}}));
  EXPECT_EQ(plan->rows, 28);
  EXPECT_EQ(plan->gemm_rows, 24);
  EXPECT_EQ(plan->valid_rows, 17);
}

TEST(RowLayout, CompactRunsLieBackToBack) {
  const Plan plan = plan_of(0, Layout::kCompact);
  EXPECT_EQ(
      runs_of(plan),
      (std::vector<RunRow>{
          {0, 1, 0, 5, 0}, {0, 2, 5, 2, 0}, {0, 0, 7, 3, 0}, {1, 1, 12, 0, 5}, {1, 2, 12, 6, 2}, {1, 0, 18, 1, 3}}));
  EXPECT_EQ(experts_of(plan), (std::vector<ExpertRow>{{0, 0, 3, 2, 0, 10, 10}, {1, 3, 2, 2, 12, 7, 7}}));
  EXPECT_EQ(plan->rows, 20);
  EXPECT_EQ(plan->gemm_rows, 17);
  EXPECT_EQ(plan->valid_rows, 17);
}

TEST(RowLayout, StartsWithTheNextRankAndWrapsAround) {
  const Plan plan = plan_of(2, Layout::kCompact);  // expert 3: owners 0, 1, then 2 itself
  EXPECT_EQ(runs_of(plan), (std::vector<RunRow>{{3, 0, 0, 4, 6}, {3, 1, 4, 0, 6}, {3, 2, 4, 1, 11}}));
}

TEST(RowLayout, OwnersKnowWhereTheirCopiesGoAndComeBackTo) {
  const Plan aligned = plan_of(0, Layout::kOwnerAligned), compact = plan_of(0, Layout::kCompact);
  EXPECT_EQ(aligned->dispatch_row, (std::vector<int64_t>{12, 24, 4, 0}));
  EXPECT_EQ(compact->dispatch_row, (std::vector<int64_t>{7, 18, 3, 0}));
  for (const Plan& plan : {aligned, compact}) {
    EXPECT_EQ(plan->staging_row, (std::vector<int64_t>{0, 3, 4, 6, 10}));
    EXPECT_EQ(plan->staging_rows, 10);
    EXPECT_EQ(plan->returned_rows, (std::vector<int64_t>{0, 2, 4}));
    EXPECT_EQ(plan->dispatched_rows, (std::vector<int64_t>{4, 5, 8}));
    EXPECT_EQ(plan->copies_of, (std::vector<int64_t>{10, 6, 12}));
  }
}

TEST(RowLayout, CountsTheLastColumnTileWhole) {
  EXPECT_EQ(plan_of(0, Layout::kCompact)->tiles_n, 2);  // 6 columns in tiles of 4
  EXPECT_EQ(plan_of(0, Layout::kCompact).tiles(), 10);
  EXPECT_EQ(plan_of(0, Layout::kOwnerAligned).tiles(), 14);
  EXPECT_EQ(make_plan(kPlacement, 0, kCounts, 8, {.tile_m = 4, .tile_n = 4})->tiles_n, 2);
  EXPECT_EQ(make_plan(kPlacement, 0, kCounts, 3, {.tile_m = 4, .tile_n = 4})->tiles_n, 1);
}

TEST(RowLayout, OneRowForEachExpertAndOwnerFillsOneRowOfEachRemoteBand) {
  const Placement placement = Placement::even(4, 16);
  const RouteCounts counts(placement, std::vector<int32_t>(64, 1));
  const auto plans = testing::make_plans(placement, counts, 256, {.tile_m = 128, .layout = Layout::kOwnerAligned});
  for (const Plan& plan : plans) {
    EXPECT_EQ(plan.bands(), 16);  // 4 experts, 3 remote owners and the rank itself
    EXPECT_EQ(plan->gemm_rows, 4 * (3 * 128 + 1));
    EXPECT_EQ(plan->segments.size(), 12u);
    for (const Segment& segment : plan->segments) EXPECT_EQ(segment.row_count, 1);
  }
}

TEST(RowLayout, EmptyExpertsTakeNoBand) {
  // Rank 0 hosts four experts with 130, 0, 0 and 5 rows, all of rank 1.
  const Placement placement = Placement::even(2, 8);
  std::vector<int32_t> counts(16, 0);
  counts[8] = 130;
  counts[11] = 5;
  for (const Layout layout : {Layout::kOwnerAligned, Layout::kCompact}) {
    const Plan plan = make_plan(placement, 0, RouteCounts(placement, counts), 64, {.tile_m = 128, .layout = layout});
    ASSERT_EQ(plan.bands(), 3);
    EXPECT_EQ(plan->experts[1].bands, 0);
    EXPECT_EQ(plan->experts[2].bands, 0);
    ASSERT_EQ(plan->segments.size(), 3u);
    EXPECT_EQ(plan->segments[0].row_count, 128);
    EXPECT_EQ(plan->segments[1].row_count, 2);
    EXPECT_EQ(plan->segments[2].row_count, 5);
    EXPECT_EQ(plan->segments[2].expert, 3);
    EXPECT_EQ(plan->order[0].expert, 0);
    EXPECT_EQ(plan->order[1].expert, 0);
    EXPECT_EQ(plan->order[2].expert, 3);
  }
}

TEST(RowLayout, ARankThatHostsNoRowsPlansNoTiles) {
  const Placement placement = Placement::even(2, 8);
  std::vector<int32_t> counts(16, 0);
  for (size_t expert = 4; expert < 8; ++expert) counts[expert] = counts[8 + expert] = 3;
  const Plan plan = make_plan(placement, 0, RouteCounts(placement, counts), 64);
  EXPECT_EQ(plan.bands(), 0);
  EXPECT_EQ(plan.tiles(), 0);
  EXPECT_TRUE(plan->segments.empty());
  EXPECT_EQ(plan->rows, 0);
  EXPECT_EQ(plan->staging_rows, 12);
  EXPECT_EQ(plan->returned_rows[1], 12);
}

TEST(RowLayout, OfNothingIsValidAndEmpty) {
  const Placement placement = Placement::even(4, 8);
  const RouteCounts counts(placement, std::vector<int32_t>(32, 0));
  for (const Layout layout : {Layout::kOwnerAligned, Layout::kCompact}) {
    for (const Plan& plan : testing::make_plans(placement, counts, 64, {.layout = layout})) {
      EXPECT_EQ(plan->rows, 0);
      EXPECT_TRUE(plan->order.empty());
      EXPECT_TRUE(plan->segments.empty());
      EXPECT_EQ(plan->staging_row, std::vector<int64_t>(9, 0));
      EXPECT_EQ(plan->dispatch_row, std::vector<int64_t>(8, 0));
      EXPECT_EQ(plan->runs.size(), 8u);
      for (const auto& run : plan->runs) EXPECT_EQ(run.row_begin, 0);
    }
  }
}

TEST(RowLayout, WithoutAnyExpertIsValidAndEmpty) {
  const Placement placement = Placement::even(3, 0);
  for (const Plan& plan : testing::make_plans(placement, RouteCounts(placement, {}), 64, {})) {
    EXPECT_EQ(plan.bands(), 0);
    EXPECT_EQ(plan->staging_row, std::vector<int64_t>{0});
    EXPECT_EQ(plan->copies_of, (std::vector<int64_t>{0, 0, 0}));
  }
}

TEST(RowLayout, OneExpertWithEveryTokenOfEveryRankNeedsNoPadding) {
  const Placement placement = Placement::even(4, 8);
  std::vector<int32_t> counts(32, 0);
  for (size_t owner = 0; owner < 4; ++owner) counts[owner * 8 + 5] = 1024;
  const auto plans = testing::make_plans(placement, RouteCounts(placement, counts), 64,
                                         {.tile_m = 128, .layout = Layout::kOwnerAligned});
  EXPECT_EQ(plans[2]->rows, 4096);
  EXPECT_EQ(plans[2]->gemm_rows, 4096);
  EXPECT_EQ(plans[2].bands(), 32);
  EXPECT_EQ(plans[2]->experts[1].remote_bands, 24);
  for (const size_t rank : {0u, 1u, 3u}) EXPECT_EQ(plans[rank].bands(), 0);
}

TEST(RowLayout, UnevenPlacementsHostEveryExpert) {
  for (const auto& [experts, world] : {std::pair{256, 3}, std::pair{10, 4}, std::pair{3, 5}}) {
    const Placement placement = Placement::even(world, experts);
    const RouteCounts counts(placement, std::vector<int32_t>(static_cast<size_t>(world * experts), 1));
    size_t hosted = 0;
    for (const Plan& plan : testing::make_plans(placement, counts, 64, {})) {
      hosted += plan->experts.size();
      EXPECT_EQ(plan->staging_rows, experts);
    }
    EXPECT_EQ(hosted, static_cast<size_t>(experts));
  }
}

}  // namespace
}  // namespace tileoverlap
