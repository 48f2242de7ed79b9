// Where each copy goes and where its result is found, by hand and against the runs of the plans.

#include "tileoverlap/dispatch/copy_index.hpp"

#include <gtest/gtest.h>

#include <array>
#include <set>
#include <vector>

#include "support/host_tensor.hpp"
#include "support/messages.hpp"
#include "support/random_routing.hpp"
#include "tileoverlap/core/error.hpp"

namespace tileoverlap {
namespace {

using testing::HostTensor;
using testing::message_of;
using testing::Random;
using testing::Says;

// Three ranks, experts {0, 1}, {2}, {3}; owner 0 sends 3, 1, 2 and 4 copies (see plan/row_layout_test.cpp).
Plan small_plan(Layout layout) {
  const Placement placement = Placement::from_begins({0, 2, 3, 4});
  const RouteCounts counts(placement, {3, 1, 2, 4, 5, 0, 1, 0, 2, 6, 3, 1});
  return make_plan(placement, 0, counts, 6, {.tile_m = 4, .layout = layout});
}
const std::initializer_list<int> kIds = {0, 3, 3, 0, 2, 3, 1, -1, 3, 0, 2, -1};  // six tokens, two slots

TEST(CopyIndex, NumbersTheCopiesOfAnExpertByTokenAndSlot) {
  const HostTensor ids(DType::kInt32, {6, 2}, kIds);
  const CopyIndex index = make_copy_index(small_plan(Layout::kOwnerAligned), ids.arg());
  EXPECT_EQ(index.tokens, 6);
  EXPECT_EQ(index.top_k, 2);
  EXPECT_EQ(index.peer, (std::vector<int32_t>{0, 2, 2, 0, 1, 2, 0, -1, 2, 0, 1, -1}));
  EXPECT_EQ(index.dispatch_row, (std::vector<int64_t>{12, 0, 1, 13, 4, 2, 24, -1, 3, 14, 5, -1}));
  // Staging rows of expert 2 begin at 4, of expert 3 at 6; own output rows come behind the 10 staging rows.
  EXPECT_EQ(index.gather_row, (std::vector<int64_t>{22, 6, 7, 23, 4, 8, 34, -1, 9, 24, 5, -1}));
}

TEST(CopyIndex, OfTheCompactLayoutDiffersInRowsOnly) {
  const HostTensor ids(DType::kInt32, {6, 2}, kIds);
  const CopyIndex index = make_copy_index(small_plan(Layout::kCompact), ids.arg());
  EXPECT_EQ(index.dispatch_row, (std::vector<int64_t>{7, 0, 1, 8, 3, 2, 18, -1, 3, 9, 4, -1}));
  EXPECT_EQ(index.gather_row, (std::vector<int64_t>{17, 6, 7, 18, 4, 8, 28, -1, 9, 19, 5, -1}));
}

TEST(CopyIndex, ReadsBothWidthsAndAnyRowStrideAlike) {
  const Plan plan = small_plan(Layout::kCompact);
  const HostTensor narrow(DType::kInt32, {6, 2}, kIds);
  HostTensor wide(DType::kInt64, {6, 5});
  wide.fill(99);
  for (int64_t i = 0; i < 12; ++i) wide.put(i / 2 * 5 + i % 2, narrow.get_id(i));
  std::array<int64_t, 2> shape{6, 2}, strides{5, 1};
  wide.dl().shape = shape.data();
  wide.dl().strides = strides.data();
  const CopyIndex from_narrow = make_copy_index(plan, narrow.arg()), from_wide = make_copy_index(plan, wide.arg());
  EXPECT_EQ(from_narrow.gather_row, from_wide.gather_row);
  EXPECT_EQ(from_narrow.dispatch_row, from_wide.dispatch_row);
  EXPECT_EQ(from_narrow.peer, from_wide.peer);
}

TEST(CopyIndex, GivesEachCopyARowOfItsOwnInItsRun) {
  Random random(81);
  for (int round = 0; round < 200; ++round) {
    const Placement placement = testing::random_placement(random);
    const PlanOptions options = testing::random_options(random);
    const int64_t top_k = random.between(1, 8);
    std::vector<HostTensor> ids;
    std::vector<TensorArg> args;
    for (int32_t rank = 0; rank < placement.world(); ++rank) {
      HostTensor tensor(random.chance(50) ? DType::kInt32 : DType::kInt64, {random.between(0, 30), top_k});
      for (int64_t i = 0; i < tensor.elements(); ++i) tensor.put(i, random.between(-1, placement.experts() - 1));
      ids.push_back(std::move(tensor));
    }
    for (const HostTensor& tensor : ids) args.push_back(tensor.arg());
    const auto plans = testing::make_plans(placement, count_routes(placement, args), 24, options);
    std::vector<std::set<int64_t>> rows_taken(plans.size());
    for (size_t owner = 0; owner < plans.size(); ++owner) {
      const CopyIndex index = make_copy_index(plans[owner], args[owner]);
      std::vector<int64_t> copies_seen(static_cast<size_t>(placement.experts()), 0);
      std::set<int64_t> gathered;
      ASSERT_EQ(index.peer.size(), static_cast<size_t>(ids[owner].elements()));
      for (int64_t copy = 0; copy < ids[owner].elements(); ++copy) {
        const auto at = static_cast<size_t>(copy);
        const auto expert = static_cast<int32_t>(ids[owner].get_id(copy));
        if (expert < 0) {
          ASSERT_EQ(index.peer[at], -1);
          ASSERT_EQ(index.dispatch_row[at], -1);
          ASSERT_EQ(index.gather_row[at], -1);
          continue;
        }
        const int32_t host = placement.rank_of(expert);
        const auto& run = plans[static_cast<size_t>(host)].run(expert, static_cast<int32_t>(owner));
        const int64_t number = copies_seen[static_cast<size_t>(expert)]++;
        ASSERT_EQ(index.peer[at], host);
        ASSERT_EQ(index.dispatch_row[at], run.row_begin + number);
        ASSERT_TRUE(rows_taken[static_cast<size_t>(host)].insert(index.dispatch_row[at]).second);
        ASSERT_EQ(index.gather_row[at], host == static_cast<int32_t>(owner)
                                            ? plans[owner]->staging_rows + index.dispatch_row[at]
                                            : run.remote_row + number);
        ASSERT_TRUE(gathered.insert(index.gather_row[at]).second);
      }
    }
  }
}

TEST(CopyIndex, OfNoTokensIsEmpty) {
  const Placement placement = Placement::even(2, 2);
  const HostTensor ids(DType::kInt64, {0, 3});
  const CopyIndex index = make_copy_index(make_plan(placement, 0, RouteCounts(placement, {0, 0, 4, 4}), 8), ids.arg());
  EXPECT_EQ(index.tokens, 0);
  EXPECT_EQ(index.top_k, 3);
  EXPECT_TRUE(index.peer.empty());
}

TEST(CopyIndex, MayBeFilledAgainWithFewerTokens) {
  const Placement placement = Placement::even(1, 2);
  CopyIndex index;
  const TensorSpec spec{.argument = "topk_ids", .dtypes = {DType::kInt32}, .shape = {-1, -1}, .shape_names = "[T, k]"};
  const HostTensor many(DType::kInt32, {3, 1}, {1, 0, 1}), few(DType::kInt32, {1, 1}, {0});
  fill_copy_index(make_plan(placement, 0, RouteCounts(placement, {1, 2}), 8), check_tensor(many.arg(), spec), index);
  EXPECT_EQ(index.gather_row.size(), 3u);
  fill_copy_index(make_plan(placement, 0, RouteCounts(placement, {1, 0}), 8), check_tensor(few.arg(), spec), index);
  EXPECT_EQ(index.tokens, 1);
  EXPECT_EQ(index.gather_row, std::vector<int64_t>{1});  // one staging row, then row 0 of the output
}

TEST(CopyIndexRefuses, IdsThatDoNotGiveThePlansCounts) {
  HostTensor ids(DType::kInt32, {6, 2}, kIds);
  ids.put(0, 1);  // expert 0 loses a copy, expert 1 gains one
  EXPECT_THAT(message_of<InvalidArgument>([&] { make_copy_index(small_plan(Layout::kCompact), ids.arg()); }),
              Says("topk_ids", "rank 0", "expert 0", "2", "3"));
}

TEST(CopyIndexRefuses, IdsThatGiveFewerOrMoreCopies) {
  const Plan plan = small_plan(Layout::kCompact);
  const HostTensor none(DType::kInt32, {0, 2}),
      more(DType::kInt32, {7, 2}, {0, 3, 3, 0, 2, 3, 1, -1, 3, 0, 2, -1, 3, -1});
  EXPECT_THAT(message_of<InvalidArgument>([&] { make_copy_index(plan, none.arg()); }),
              Says("topk_ids", "expert 0", "0", "3"));
  EXPECT_THAT(message_of<InvalidArgument>([&] { make_copy_index(plan, more.arg()); }),
              Says("topk_ids", "expert 3", "5", "4"));
}

TEST(CopyIndexRefuses, OutsidersAsCountIdsDoes) {
  HostTensor ids(DType::kInt64, {6, 2}, kIds);
  ids.put(7, static_cast<int64_t>(0xffff0bdc00000001));
  EXPECT_THAT(message_of<InvalidArgument>([&] { make_copy_index(small_plan(Layout::kCompact), ids.arg()); }),
              Says("topk_ids", "rank 0", "token 3", "slot 1", "-268435455999999"));
  const HostTensor floats(DType::kFloat32, {6, 2});
  EXPECT_THAT(message_of<DTypeError>([&] { make_copy_index(small_plan(Layout::kCompact), floats.arg()); }),
              Says("topk_ids", "float32", "int32", "int64"));
}

}  // namespace
}  // namespace tileoverlap
