// The order of bands, their groups, and the tile of each task.

#include "tileoverlap/plan/schedule.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <vector>

#include "support/random_routing.hpp"
#include "support/row_table.hpp"
#include "tileoverlap/plan/plan.hpp"

namespace tileoverlap {
namespace {

using testing::Random;

using Entry = std::tuple<int32_t, int32_t, int32_t, int32_t>;  // band, expert, group_begin, group_size
std::vector<Entry> order_of(const Plan& plan) {
  std::vector<Entry> order;
  for (const ScheduledBand& b : plan->order) order.emplace_back(b.band, b.expert, b.group_begin, b.group_size);
  return order;
}

// Two ranks; on rank 0, tile_m = 4: expert 0 has 1 remote band, expert 1 has 3, expert 2 has 3, expert 3 none; the
// rank's own rows make a local band for experts 0, 2 and 3.
Plan four_experts(int32_t group) {
  const Placement placement = Placement::from_begins({0, 4, 4});
  const RouteCounts counts(placement, {4, 0, 2, 6, /* owner 1 */ 3, 12, 9, 0});
  return make_plan(placement, 0, counts, 8,
                   {.tile_m = 4, .tile_n = 4, .layout = Layout::kOwnerAligned, .group = group});
}

TEST(TileSchedule, PutsExpertsWithMoreRemoteBandsFirstAndAFewLocalBandsLast) {
  // Bands: expert 0 has 0 (remote), 1; expert 1 has 2..4; expert 2 has 5..7 (remote), 8; expert 3 has 9, 10. The last
  // expert with a remote band has one, so one local band has to be behind it: those of expert 3 are enough.
  EXPECT_EQ(order_of(four_experts(1)), (std::vector<Entry>{{2, 1, 0, 1},
                                                           {3, 1, 1, 1},
                                                           {4, 1, 2, 1},
                                                           {5, 2, 3, 1},
                                                           {6, 2, 4, 1},
                                                           {7, 2, 5, 1},
                                                           {8, 2, 6, 1},
                                                           {0, 0, 7, 1},
                                                           {1, 0, 8, 1},
                                                           {9, 3, 9, 1},
                                                           {10, 3, 10, 1}}));
}

TEST(TileSchedule, GroupsGrowFromOneBandAndNeverCrossExperts) {
  EXPECT_EQ(order_of(four_experts(8)), (std::vector<Entry>{{2, 1, 0, 1},
                                                           {3, 1, 1, 2},
                                                           {4, 1, 1, 2},
                                                           {5, 2, 3, 4},
                                                           {6, 2, 3, 4},
                                                           {7, 2, 3, 4},
                                                           {8, 2, 3, 4},
                                                           {0, 0, 7, 2},
                                                           {1, 0, 7, 2},
                                                           {9, 3, 9, 2},
                                                           {10, 3, 9, 2}}));
}

// Two ranks, tile_m = 4; on rank 0 every expert has `remote` bands of the other's and then `local` of its own.
Plan even_experts(int32_t experts, int32_t remote, int32_t local, int32_t group) {
  const Placement placement = Placement::from_begins({0, experts, experts});
  std::vector<int32_t> counts(static_cast<size_t>(experts), 4 * local);
  counts.insert(counts.end(), static_cast<size_t>(experts), 4 * remote);
  return make_plan(placement, 0, RouteCounts(placement, counts), 8, {.tile_m = 4, .tile_n = 4, .group = group});
}

std::vector<int32_t> group_sizes(const Plan& plan) {
  std::vector<int32_t> sizes;
  for (int32_t i = 0; i < plan.bands(); i += sizes.back()) {
    sizes.push_back(plan->order[static_cast<size_t>(i)].group_size);
  }
  return sizes;
}

TEST(TileSchedule, HoldsBackLocalBandsButSingleOnesOnlyAsFarAsTheLastRemoteGroupWants) {
  EXPECT_EQ(group_sizes(even_experts(6, 3, 1, 8)), (std::vector<int32_t>{1, 2, 1, 4, 4, 3, 3, 3, 1, 1, 1}));
  EXPECT_EQ(group_sizes(even_experts(3, 12, 4, 8)), (std::vector<int32_t>{1, 2, 4, 5, 6, 6, 6, 6, 4, 4, 4}));
  EXPECT_EQ(group_sizes(even_experts(3, 2, 0, 8)), (std::vector<int32_t>{1, 1, 2, 2}));
  EXPECT_EQ(group_sizes(even_experts(3, 0, 3, 8)), (std::vector<int32_t>{1, 2, 3, 3}));
}

TEST(TileSchedule, GroupsDoubleUpToTheGivenSize) {
  const Placement placement = Placement::from_begins({0, 1, 1});
  const RouteCounts counts(placement, {0, 30 * 4});
  const Plan plan = make_plan(placement, 0, counts, 8, {.tile_m = 4, .tile_n = 4, .group = 6});
  EXPECT_EQ(group_sizes(plan), (std::vector<int32_t>{1, 2, 4, 6, 6, 6, 5}));
}

TEST(TileSchedule, InterleavesTheTilesOfAGroup) {
  const Plan plan = four_experts(2);  // 2 column tiles
  std::vector<std::pair<int32_t, int32_t>> tiles;
  for (int64_t task = 0; task < 6; ++task) {
    const TileCoord tile = tile_at(plan->order.data(), task, plan->tiles_n);
    tiles.emplace_back(tile.band, tile.tile_n);
  }
  EXPECT_EQ(tiles, (std::vector<std::pair<int32_t, int32_t>>{{2, 0},
                                                             {2, 1},  // a group of one
                                                             {3, 0},
                                                             {4, 0},
                                                             {3, 1},
                                                             {4, 1}}));  // a group of two
}

TEST(TileSchedule, HoldsEveryTileOnceWithItsExpert) {
  Random random(31);
  for (int round = 0; round < 200; ++round) {
    const Placement placement = testing::random_placement(random);
    const RouteCounts counts = testing::random_counts(random, placement);
    const PlanOptions options = testing::random_options(random);
    for (const Plan& plan : testing::make_plans(placement, counts, random.between(1, 100), options)) {
      const auto table = testing::write_row_table(placement, plan->rank, counts, options);
      std::vector<int> seen(static_cast<size_t>(plan.tiles()), 0);
      for (int64_t task = 0; task < plan.tiles(); ++task) {
        const TileCoord tile = tile_at(plan->order.data(), task, plan->tiles_n);
        ASSERT_GE(tile.tile_n, 0);
        ASSERT_LT(tile.tile_n, plan->tiles_n);
        ++seen.at(static_cast<size_t>(int64_t{tile.band} * plan->tiles_n + tile.tile_n));
        ASSERT_EQ(tile.expert, table.at(static_cast<size_t>(int64_t{tile.band} * options.tile_m)).expert);
      }
      ASSERT_EQ(std::count(seen.begin(), seen.end(), 1), plan.tiles()) << plan.repr();
    }
  }
}

// Number of remote rows in each band, from the row table.
std::vector<int> remote_rows_of_bands(const std::vector<testing::RowUse>& table, int32_t rank, int32_t tile_m) {
  std::vector<int> remote(table.size() / static_cast<size_t>(tile_m), 0);
  for (size_t row = 0; row < table.size(); ++row) {
    remote[row / static_cast<size_t>(tile_m)] += table[row].owner >= 0 && table[row].owner != rank ? 1 : 0;
  }
  return remote;
}

TEST(TileSchedule, FollowsItsRulesOnRandomCounts) {
  Random random(32);
  for (int round = 0; round < 200; ++round) {
    const Placement placement = testing::random_placement(random);
    const RouteCounts counts = testing::random_counts(random, placement);
    const PlanOptions options = testing::random_options(random);
    for (const Plan& plan : testing::make_plans(placement, counts, 24, options)) {
      const auto table = testing::write_row_table(placement, plan->rank, counts, options);
      const auto remote = remote_rows_of_bands(table, plan->rank, options.tile_m);
      std::map<int32_t, int> remote_bands;  // by expert
      for (size_t band = 0; band < remote.size(); ++band) {
        remote_bands[table[band * static_cast<size_t>(options.tile_m)].expert] += remote[band] > 0 ? 1 : 0;
      }
      bool held_back = false;
      int64_t trailing = 0, last_remote = 0;  // local bands at the end; remote bands of the last expert that has any
      int32_t largest = 1;                    // that the next group may be
      for (size_t i = 0; i < plan->order.size(); ++i) {
        const ScheduledBand& entry = plan->order[i];
        const bool is_remote = remote[static_cast<size_t>(entry.band)] > 0;
        const bool follows = i > 0 && plan->order[i - 1].expert == entry.expert;
        held_back |= !is_remote && !follows;
        ASSERT_FALSE(is_remote && held_back) << plan.repr();
        ASSERT_TRUE(!follows || entry.band == plan->order[i - 1].band + 1);
        if (!follows && i > 0 && is_remote) {
          const ScheduledBand& before = plan->order[i - 1];
          const int here = remote_bands[entry.expert], there = remote_bands[before.expert];
          ASSERT_TRUE(there > here || (there == here && before.expert < entry.expert)) << plan.repr();
        }
        if (is_remote) last_remote = remote_bands[entry.expert];
        trailing = is_remote ? 0 : trailing + 1;
        if (entry.group_begin == static_cast<int32_t>(i)) {
          ASSERT_LE(entry.group_size, largest);
          largest = std::min(2 * largest, options.group);
        }
        const ScheduledBand& head = plan->order.at(static_cast<size_t>(entry.group_begin));
        ASSERT_EQ(head.expert, entry.expert);
        ASSERT_EQ(head.group_begin, entry.group_begin);
        ASSERT_EQ(head.group_size, entry.group_size);
        ASSERT_LT(static_cast<int32_t>(i), entry.group_begin + entry.group_size);
      }
      // Enough local bands come last, or all there are.
      int64_t local = 0;
      for (const int count : remote) local += count == 0 ? 1 : 0;
      ASSERT_GE(trailing, std::min({local, last_remote, int64_t{options.group}})) << plan.repr();
    }
  }
}

}  // namespace
}  // namespace tileoverlap
