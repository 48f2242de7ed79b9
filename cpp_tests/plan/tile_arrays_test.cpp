// The paper's per-tile arrays: by hand, against a table of rows, and where offsets pass 32 bits.

#include "tileoverlap/plan/tile_arrays.hpp"

#include <gtest/gtest.h>

#include <tuple>
#include <vector>

#include "support/random_routing.hpp"
#include "support/row_table.hpp"

namespace tileoverlap {
namespace {

using testing::Random;

using Row = std::tuple<int64_t, int32_t, int32_t, int64_t, int64_t, int64_t>;
std::vector<Row> rows_of(const TileArrays& arrays) {
  std::vector<Row> rows;
  for (size_t i = 0; i < arrays.tile.size(); ++i) {
    rows.emplace_back(arrays.tile[i], arrays.expert.at(i), arrays.dest_rank.at(i), arrays.row_begin.at(i),
                      arrays.valid_rows.at(i), arrays.remote_offset.at(i));
  }
  return rows;
}

// Two ranks, one expert on rank 0: 5 rows of owner 1 (staging rows 3.. of that owner), 2 of its own; tile_m = 4.
Plan small_plan(Layout layout) {
  const Placement placement = Placement::from_begins({0, 1, 2});
  const RouteCounts counts(placement, {2, 0, 5, 1});
  return make_plan(placement, 0, counts, 10, {.tile_m = 4, .tile_n = 8, .layout = layout, .group = 1});
}

TEST(PaperArrays, HaveOneDestinationPerTileWhenOwnerAligned) {
  EXPECT_EQ(rows_of(tile_arrays(small_plan(Layout::kOwnerAligned))), (std::vector<Row>{{0, 0, 1, 0, 4, 0},
                                                                                       {1, 0, 1, 0, 4, 8},
                                                                                       {2, 0, 1, 4, 1, 40},
                                                                                       {3, 0, 1, 4, 1, 48},
                                                                                       {4, 0, 0, 8, 2, -1},
                                                                                       {5, 0, 0, 8, 2, -1}}));
}

TEST(PaperArrays, MayHaveSeveralDestinationsPerTileWhenCompact) {
  EXPECT_EQ(rows_of(tile_arrays(small_plan(Layout::kCompact))), (std::vector<Row>{{0, 0, 1, 0, 4, 0},
                                                                                  {1, 0, 1, 0, 4, 8},
                                                                                  {2, 0, 1, 4, 1, 40},
                                                                                  {2, 0, 0, 5, 2, -1},
                                                                                  {3, 0, 1, 4, 1, 48},
                                                                                  {3, 0, 0, 5, 2, -1}}));
}

// The paper's Algorithm 1, told by rows: for each tile, who gets its valid rows and at which element of their buffer.
std::vector<Row> arrays_from_table(const Plan& plan, const std::vector<testing::RowUse>& table) {
  std::vector<Row> rows;
  const auto tile_m = static_cast<size_t>(plan->options.tile_m);
  for (int64_t task = 0; task < plan.tiles(); ++task) {
    const TileCoord tile = tile_at(plan->order.data(), task, plan->tiles_n);
    const size_t begin = static_cast<size_t>(tile.band) * tile_m;
    for (size_t row = begin; row < begin + tile_m; ++row) {
      const auto& use = table.at(row);
      if (use.owner < 0) continue;
      if (row > begin && table[row - 1].owner == use.owner) {
        ++std::get<4>(rows.back());
        continue;
      }
      const int64_t column = int64_t{tile.tile_n} * plan->options.tile_n;
      const int64_t offset = use.owner == plan->rank ? -1 : use.staging * plan->n + column;
      rows.emplace_back(int64_t{tile.band} * plan->tiles_n + tile.tile_n, use.expert, use.owner,
                        static_cast<int64_t>(row), 1, offset);
    }
  }
  return rows;
}

TEST(PaperArrays, AgreeWithATableOfRows) {
  Random random(61);
  for (int round = 0; round < 200; ++round) {
    const Placement placement = testing::random_placement(random, 6);
    const RouteCounts counts = testing::random_counts(random, placement, 20);
    const PlanOptions options = testing::random_options(random);
    for (const Plan& plan : testing::make_plans(placement, counts, random.between(1, 60), options)) {
      const auto table = testing::write_row_table(placement, plan->rank, counts, options);
      ASSERT_EQ(rows_of(tile_arrays(plan)), arrays_from_table(plan, table)) << plan.repr();
    }
  }
}

TEST(PaperArrays, AreExactWhereOffsetsPass32Bits) {
  // Rows of 7168 that owner 1 gets from rank 0: expert 1's begin at staging row 299593, expert 2's at 299594, just
  // below and above 2^31 elements; expert 3's at 600000, above 2^32.
  const Placement placement = Placement::from_begins({0, 4, 4});
  const RouteCounts counts(placement, {0, 0, 0, 0, 299593, 1, 300406, 5});
  const Plan plan = make_plan(placement, 0, counts, 7168, {.tile_m = 4096, .tile_n = 7168, .group = 1});
  const TileArrays arrays = tile_arrays(plan);
  std::vector<int64_t> first(4, -1);
  for (size_t i = 0; i < arrays.tile.size(); ++i) {
    ASSERT_EQ(arrays.dest_rank[i], 1);
    int64_t& of_expert = first[static_cast<size_t>(arrays.expert[i])];
    if (of_expert < 0) of_expert = arrays.remote_offset[i];
  }
  EXPECT_EQ(first, (std::vector<int64_t>{0, 2147482624, 2147489792, 4300800000}));
}

TEST(PaperArrays, OfAnEmptyPlanAreEmpty) {
  const Placement placement = Placement::even(2, 2);
  const TileArrays arrays = tile_arrays(make_plan(placement, 0, RouteCounts(placement, {0, 0, 0, 0}), 8));
  EXPECT_TRUE(arrays.tile.empty());
  EXPECT_TRUE(arrays.remote_offset.empty());
}

}  // namespace
}  // namespace tileoverlap
