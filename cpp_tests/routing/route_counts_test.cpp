// The counts matrix and how it is made of the ids of ranks in one process.

#include <gtest/gtest.h>

#include <vector>

#include "support/host_tensor.hpp"
#include "support/messages.hpp"
#include "support/random.hpp"
#include "tileoverlap/core/error.hpp"
#include "tileoverlap/routing/counts.hpp"

namespace tileoverlap {
namespace {

using testing::HostTensor;
using testing::message_of;
using testing::Random;
using testing::Says;

TEST(RouteCountsMatrix, IsRowMajorByOwner) {
  const RouteCounts counts(Placement::even(2, 3), {1, 2, 3, 40, 50, 60});
  EXPECT_EQ(counts.world(), 2);
  EXPECT_EQ(counts.experts(), 3);
  EXPECT_EQ(counts.at(0, 2), 3);
  EXPECT_EQ(counts.at(1, 0), 40);
  EXPECT_EQ(counts.row(1)[2], 60);
  EXPECT_EQ(counts.copies_of(0), 6);
  EXPECT_EQ(counts.copies_of(1), 150);
}

TEST(RouteCountsMatrix, SumsCopiesIn64Bits) {
  const RouteCounts counts(Placement::even(1, 3), {2147483647, 2147483647, 2147483647});
  EXPECT_EQ(counts.copies_of(0), 6442450941);
}

TEST(RouteCountsMatrix, RefusesAnotherSizeWithBothNumbers) {
  EXPECT_THAT(message_of<InvalidArgument>([] {
                RouteCounts(Placement::even(2, 3), {1, 2, 3, 4, 5});
              }),
              Says("counts", "2", "3", "6", "5"));
}

TEST(RouteCountsMatrix, RefusesANegativeEntryByOwnerAndExpert) {
  EXPECT_THAT(message_of<InvalidArgument>([] {
                RouteCounts(Placement::even(2, 3), {0, 0, 0, 0, -7, 0});
              }),
              Says("counts", "-7", "owner 1", "expert 1"));
}

TEST(RouteCountsMatrix, TextSaysItsSizeAndSum) {
  EXPECT_THAT(RouteCounts(Placement::even(2, 3), {1, 2, 3, 4, 5, 6}).repr(), Says("world=2", "experts=3", "copies=21"));
}

TEST(CountRoutes, MakesOneRowPerRankWhateverTheirTokens) {
  const HostTensor first(DType::kInt32, {2, 2}, {0, 1, 1, -1}), second(DType::kInt64, {0, 2}),
      third(DType::kInt64, {1, 2}, {3, 3});
  const std::vector<TensorArg> ids{first.arg(), second.arg(), third.arg()};
  const RouteCounts counts = count_routes(Placement::even(3, 4), ids);
  const std::vector<int32_t> expected{1, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2};
  EXPECT_EQ(std::vector<int32_t>(counts.values().begin(), counts.values().end()), expected);
}

TEST(CountRoutes, RefusesAnotherNumberOfTensorsThanRanks) {
  const HostTensor ids(DType::kInt32, {1, 1});
  const std::vector<TensorArg> two{ids.arg(), ids.arg()};
  EXPECT_THAT(message_of<InvalidArgument>([&] { count_routes(Placement::even(3, 4), two); }),
              Says("topk_ids", "3", "2"));
}

TEST(CountRoutes, NamesTheRankWhoseIdsAreWrong) {
  const HostTensor good(DType::kInt32, {1, 2}, {0, 1}), bad(DType::kInt32, {1, 2}, {0, 4});
  const std::vector<TensorArg> ids{good.arg(), bad.arg()};
  EXPECT_THAT(message_of<InvalidArgument>([&] { count_routes(Placement::even(2, 4), ids); }),
              Says("rank 1", "token 0", "slot 1", "got 4"));
}

TEST(CountRoutes, AgreesWithCountingOneByOne) {
  Random random(11);
  for (int round = 0; round < 50; ++round) {
    const Placement placement = Placement::even(random.between32(1, 9), random.between32(1, 20));
    std::vector<HostTensor> tensors;
    std::vector<TensorArg> ids;
    std::vector<int32_t> expected;
    const int64_t top_k = random.between(1, 8);
    for (int32_t rank = 0; rank < placement.world(); ++rank) {
      HostTensor tensor(random.chance(50) ? DType::kInt32 : DType::kInt64, {random.between(0, 20), top_k});
      std::vector<int32_t> row(static_cast<size_t>(placement.experts()), 0);
      for (int64_t i = 0; i < tensor.elements(); ++i) {
        tensor.put(i, random.between(-1, placement.experts() - 1));
        if (tensor.get_id(i) >= 0) ++row[static_cast<size_t>(tensor.get_id(i))];
      }
      expected.insert(expected.end(), row.begin(), row.end());
      tensors.push_back(std::move(tensor));
    }
    for (const HostTensor& tensor : tensors) ids.push_back(tensor.arg());
    const RouteCounts counts = count_routes(placement, ids);
    ASSERT_EQ(std::vector<int32_t>(counts.values().begin(), counts.values().end()), expected);
  }
}

}  // namespace
}  // namespace tileoverlap
