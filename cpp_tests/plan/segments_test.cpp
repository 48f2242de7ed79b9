// What is sent in one go, worked out by hand for both layouts and 1 to 4 bands a segment, and by property.

#include "tileoverlap/plan/segments.hpp"

#include <gtest/gtest.h>

#include <map>
#include <tuple>
#include <vector>

#include "support/random_routing.hpp"
#include "support/row_table.hpp"
#include "tileoverlap/plan/plan.hpp"

namespace tileoverlap {
namespace {

using testing::Random;

using Row = std::tuple<int32_t, int32_t, int32_t, int32_t, int64_t, int64_t, int64_t>;
std::vector<Row> segments_of(const Plan& plan) {
  std::vector<Row> rows;
  for (const Segment& s : plan->segments) {
    rows.emplace_back(s.first_band, s.last_band, s.peer, s.expert, s.row_begin, s.row_count, s.remote_row);
  }
  return rows;
}

// Three ranks, experts {0, 1} on rank 0, {2} on rank 1, {3} on rank 2; tile_m = 4 (see row_layout_test.cpp).
Plan small_plan(Layout layout) {
  const Placement placement = Placement::from_begins({0, 2, 3, 4});
  const RouteCounts counts(placement, {3, 1, 2, 4, 5, 0, 1, 0, 2, 6, 3, 1});
  return make_plan(placement, 0, counts, 6, {.tile_m = 4, .tile_n = 4, .layout = layout});
}

TEST(Segments, OwnerAlignedSendOneBandOfOneOwnerWithoutItsPadding) {
  EXPECT_EQ(segments_of(small_plan(Layout::kOwnerAligned)), (std::vector<Row>{{0, 0, 1, 0, 0, 4, 0},
                                                                              {1, 1, 1, 0, 4, 1, 4},
                                                                              {2, 2, 2, 0, 8, 2, 0},
                                                                              {4, 4, 2, 1, 16, 4, 2},
                                                                              {5, 5, 2, 1, 20, 2, 6}}));
}

TEST(Segments, CompactMayShareABandBetweenOwners) {
  EXPECT_EQ(segments_of(small_plan(Layout::kCompact)), (std::vector<Row>{{0, 0, 1, 0, 0, 4, 0},
                                                                         {1, 1, 1, 0, 4, 1, 4},
                                                                         {1, 1, 2, 0, 5, 2, 0},
                                                                         {3, 3, 2, 1, 12, 4, 2},
                                                                         {4, 4, 2, 1, 16, 2, 6}}));
}

// Rank 0 hosts one expert; owner 1 sends 21 rows, owner 2 sends 18: 6 and 5 bands of 4.
Plan long_runs(Layout layout, int32_t bands_per_segment) {
  const Placement placement = Placement::from_begins({0, 1, 1, 1});
  const RouteCounts counts(placement, {2, 21, 18});
  return make_plan(placement, 0, counts, 8,
                   {.tile_m = 4, .tile_n = 8, .layout = layout, .bands_per_segment = bands_per_segment});
}

TEST(Segments, OfTwoBandsBeginAndEndWithOne) {
  EXPECT_EQ(segments_of(long_runs(Layout::kOwnerAligned, 2)), (std::vector<Row>{{0, 0, 1, 0, 0, 4, 0},
                                                                                {1, 2, 1, 0, 4, 8, 4},
                                                                                {3, 4, 1, 0, 12, 8, 12},
                                                                                {5, 5, 1, 0, 20, 1, 20},
                                                                                {6, 7, 2, 0, 24, 8, 0},
                                                                                {8, 9, 2, 0, 32, 8, 8},
                                                                                {10, 10, 2, 0, 40, 2, 16}}));
}

TEST(Segments, OfThreeBandsAreCutShortWhereTheLastMustBeOne) {
  EXPECT_EQ(segments_of(long_runs(Layout::kOwnerAligned, 3)), (std::vector<Row>{{0, 0, 1, 0, 0, 4, 0},
                                                                                {1, 3, 1, 0, 4, 12, 4},
                                                                                {4, 5, 1, 0, 16, 5, 16},
                                                                                {6, 8, 2, 0, 24, 12, 0},
                                                                                {9, 9, 2, 0, 36, 4, 12},
                                                                                {10, 10, 2, 0, 40, 2, 16}}));
}

TEST(Segments, OfFourBandsInTheCompactLayoutCutAtBandBordersNotAtRunBorders) {
  // Owner 1 has rows 0..20, owner 2 rows 21..38: both touch band 5.
  EXPECT_EQ(segments_of(long_runs(Layout::kCompact, 4)), (std::vector<Row>{{0, 0, 1, 0, 0, 4, 0},
                                                                           {1, 4, 1, 0, 4, 16, 4},
                                                                           {5, 5, 1, 0, 20, 1, 20},
                                                                           {5, 8, 2, 0, 21, 15, 0},
                                                                           {9, 9, 2, 0, 36, 3, 15}}));
}

TEST(Segments, OfARunThatIsAloneIsCutAtBothEnds) {
  const Placement placement = Placement::from_begins({0, 1, 1});
  const Plan plan = make_plan(placement, 0, RouteCounts(placement, {0, 20}), 8, {.tile_m = 4, .bands_per_segment = 9});
  EXPECT_EQ(segments_of(plan),
            (std::vector<Row>{{0, 0, 1, 0, 0, 4, 0}, {1, 3, 1, 0, 4, 12, 4}, {4, 4, 1, 0, 16, 4, 16}}));
  const Plan single = make_plan(placement, 0, RouteCounts(placement, {0, 4}), 8, {.tile_m = 4, .bands_per_segment = 9});
  EXPECT_EQ(segments_of(single), (std::vector<Row>{{0, 0, 1, 0, 0, 4, 0}}));
  const Plan two = make_plan(placement, 0, RouteCounts(placement, {0, 5}), 8, {.tile_m = 4, .bands_per_segment = 9});
  EXPECT_EQ(segments_of(two), (std::vector<Row>{{0, 0, 1, 0, 0, 4, 0}, {1, 1, 1, 0, 4, 1, 4}}));
}

TEST(Segments, OfAWorldOfOneAreNone) {
  const Placement placement = Placement::even(1, 3);
  EXPECT_TRUE(make_plan(placement, 0, RouteCounts(placement, {5, 6, 7}), 8)->segments.empty());
}

TEST(Segments, SendEveryRemoteRowOnceToItsPlaceInStaging) {
  Random random(41);
  for (int round = 0; round < 300; ++round) {
    const Placement placement = testing::random_placement(random);
    const RouteCounts counts = testing::random_counts(random, placement);
    const PlanOptions options = testing::random_options(random);
    for (const Plan& plan : testing::make_plans(placement, counts, 24, options)) {
      const auto table = testing::write_row_table(placement, plan->rank, counts, options);
      std::vector<int> sent(table.size(), 0);
      for (const Segment& segment : plan->segments) {
        ASSERT_GT(segment.row_count, 0);
        ASSERT_EQ(segment.first_band, segment.row_begin / options.tile_m);
        ASSERT_EQ(segment.last_band, (segment.row_begin + segment.row_count - 1) / options.tile_m);
        for (int64_t i = 0; i < segment.row_count; ++i) {
          const auto& use = table.at(static_cast<size_t>(segment.row_begin + i));
          ASSERT_EQ(use.owner, segment.peer);
          ASSERT_EQ(use.expert, segment.expert);
          ASSERT_EQ(use.staging, segment.remote_row + i);
          ++sent[static_cast<size_t>(segment.row_begin + i)];
        }
      }
      for (size_t row = 0; row < table.size(); ++row) {
        ASSERT_EQ(sent[row], table[row].owner >= 0 && table[row].owner != plan->rank ? 1 : 0) << plan.repr();
      }
    }
  }
}

TEST(Segments, HoldAtMostTheirBandsAndAreCutOnlyAtBandBorders) {
  Random random(42);
  for (int round = 0; round < 300; ++round) {
    const Placement placement = testing::random_placement(random);
    const RouteCounts counts = testing::random_counts(random, placement);
    PlanOptions options = testing::random_options(random);
    for (const Plan& plan : testing::make_plans(placement, counts, 24, options)) {
      std::map<int32_t, int32_t> position;  // of each band in the schedule
      for (size_t i = 0; i < plan->order.size(); ++i) position[plan->order[i].band] = static_cast<int32_t>(i);
      int32_t last_done = -1;
      for (size_t i = 0; i < plan->segments.size(); ++i) {
        const Segment& segment = plan->segments[i];
        const int32_t bands = segment.last_band - segment.first_band + 1;
        ASSERT_LE(bands, i == 0 || i + 1 == plan->segments.size() ? 1 : options.bands_per_segment) << plan.repr();
        const auto& run = plan.run(segment.expert, segment.peer);
        const int64_t end = segment.row_begin + segment.row_count;
        ASSERT_TRUE(end % options.tile_m == 0 || end == run.row_begin + run.row_count);
        ASSERT_TRUE(segment.row_begin % options.tile_m == 0 || segment.row_begin == run.row_begin);
        ASSERT_GE(position[segment.last_band], last_done);
        last_done = position[segment.last_band];
      }
    }
  }
}

TEST(Segments, AreAsFewAsTheirBandsAllow) {
  // A finer cut than asked for would satisfy every other property.
  Random random(43);
  for (int round = 0; round < 200; ++round) {
    const Placement placement = testing::random_placement(random);
    const RouteCounts counts = testing::random_counts(random, placement);
    const PlanOptions options = testing::random_options(random);
    for (const Plan& plan : testing::make_plans(placement, counts, 24, options)) {
      int64_t expected = 0;
      for (const auto& run : plan->runs) {
        if (run.owner == plan->rank || run.row_count == 0) continue;
        const int64_t bands = (run.row_begin + run.row_count - 1) / options.tile_m - run.row_begin / options.tile_m + 1;
        expected += ceil_div(bands, options.bands_per_segment);
      }
      const auto made = static_cast<int64_t>(plan->segments.size());
      ASSERT_GE(made, expected);
      ASSERT_LE(made, expected + 2) << plan.repr();  // the one-band segments at both ends
    }
  }
}

}  // namespace
}  // namespace tileoverlap
