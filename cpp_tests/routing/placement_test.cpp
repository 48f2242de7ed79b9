// Which rank hosts which expert.

#include "tileoverlap/routing/placement.hpp"

#include <gtest/gtest.h>

#include <limits>

#include "support/messages.hpp"
#include "support/random.hpp"
#include "tileoverlap/core/error.hpp"

namespace tileoverlap {
namespace {

using testing::message_of;
using testing::Random;
using testing::Says;

TEST(PlacementEven, GivesEachRankTheSameNumberWhereTheyDivide) {
  const Placement placement = Placement::even(4, 8);
  EXPECT_EQ(placement.expert_begin(), (std::vector<int32_t>{0, 2, 4, 6, 8}));
  EXPECT_EQ(placement.world(), 4);
  EXPECT_EQ(placement.experts(), 8);
}

TEST(PlacementEven, GivesTheFirstRanksOneMoreWhereTheyDoNotDivide) {
  EXPECT_EQ(Placement::even(4, 10).expert_begin(), (std::vector<int32_t>{0, 3, 6, 8, 10}));
  EXPECT_EQ(Placement::even(3, 256).expert_begin(), (std::vector<int32_t>{0, 86, 171, 256}));
}

TEST(PlacementEven, LeavesLastRanksEmptyWhereThereAreFewerExpertsThanRanks) {
  EXPECT_EQ(Placement::even(4, 2).expert_begin(), (std::vector<int32_t>{0, 1, 2, 2, 2}));
  EXPECT_EQ(Placement::even(3, 0).expert_begin(), (std::vector<int32_t>{0, 0, 0, 0}));
}

TEST(PlacementEven, OrphansNoExpert) {
  for (int32_t world = 1; world <= 9; ++world) {
    for (int32_t experts = 0; experts <= 40; ++experts) {
      const Placement placement = Placement::even(world, experts);
      int32_t hosted = 0;
      for (int32_t rank = 0; rank < world; ++rank) {
        hosted += placement.experts_on(rank);
        EXPECT_GE(placement.experts_on(rank), experts / world);
        EXPECT_LE(placement.experts_on(rank), (experts + world - 1) / world);
      }
      EXPECT_EQ(hosted, experts) << world << " ranks";
    }
  }
}

TEST(PlacementEven, TakesAsManyExpertsAsAnIdCanName) {
  const Placement placement = Placement::even(7, std::numeric_limits<int32_t>::max());
  EXPECT_EQ(placement.experts(), std::numeric_limits<int32_t>::max());
  EXPECT_EQ(placement.experts_on(6), 306783378);
}

TEST(PlacementEven, RefusesAWorldWithoutRanksAndNegativeExperts) {
  EXPECT_THAT(message_of<InvalidArgument>([] { Placement::even(0, 8); }), Says("world", "1", "0"));
  EXPECT_THAT(message_of<InvalidArgument>([] { Placement::even(-3, 8); }), Says("world", "-3"));
  EXPECT_THAT(message_of<InvalidArgument>([] { Placement::even(2, -8); }), Says("experts", "-8"));
}

TEST(PlacementFromBegins, KeepsUnevenRanksAndRanksWithoutExperts) {
  const Placement placement = Placement::from_begins({0, 3, 3, 10, 11});
  EXPECT_EQ(placement.world(), 4);
  EXPECT_EQ(placement.experts(), 11);
  EXPECT_EQ(placement.experts_on(1), 0);
  EXPECT_EQ(placement.begin(2), 3);
  EXPECT_EQ(placement.end(2), 10);
}

TEST(PlacementFromBegins, RefusesListsThatAreNoPlacement) {
  EXPECT_THAT(message_of<InvalidArgument>([] { Placement::from_begins({}); }), Says("expert_begin", "2", "0"));
  EXPECT_THAT(message_of<InvalidArgument>([] { Placement::from_begins({0}); }), Says("expert_begin", "2", "1"));
  EXPECT_THAT(message_of<InvalidArgument>([] {
                Placement::from_begins({1, 4});
              }),
              Says("expert_begin", "start at 0", "1"));
  EXPECT_THAT(message_of<InvalidArgument>([] {
                Placement::from_begins({0, 5, 4, 8});
              }),
              Says("expert_begin", "5", "4", "index 2"));
}

TEST(PlacementRankOf, SkipsRanksWithoutExperts) {
  const Placement placement = Placement::from_begins({0, 0, 2, 2, 2, 5, 5});
  EXPECT_EQ(placement.rank_of(0), 1);
  EXPECT_EQ(placement.rank_of(1), 1);
  EXPECT_EQ(placement.rank_of(2), 4);
  EXPECT_EQ(placement.rank_of(4), 4);
}

TEST(PlacementRankOf, AgreesWithASearchThroughTheRanks) {
  Random random(3);
  for (int round = 0; round < 200; ++round) {
    std::vector<int32_t> begins{0};
    for (int32_t rank = random.between32(1, 9); rank > 0; --rank) {
      begins.push_back(begins.back() + (random.chance(30) ? 0 : random.between32(0, 6)));
    }
    const Placement placement = Placement::from_begins(begins);
    for (int32_t expert = 0; expert < placement.experts(); ++expert) {
      int32_t rank = 0;
      while (expert >= begins[static_cast<size_t>(rank) + 1]) ++rank;
      ASSERT_EQ(placement.rank_of(expert), rank);
    }
  }
}

TEST(PlacementRankOf, RefusesExpertsThatDoNotExist) {
  const Placement placement = Placement::even(2, 8);
  EXPECT_THAT(message_of<InvalidArgument>([&] { placement.rank_of(8); }), Says("expert", "0..7", "8"));
  EXPECT_THAT(message_of<InvalidArgument>([&] { placement.rank_of(-1); }), Says("expert", "0..7", "-1"));
}

TEST(PlacementComparison, IsByTheBegins) {
  EXPECT_EQ(Placement::even(2, 4), Placement::from_begins({0, 2, 4}));
  EXPECT_NE(Placement::even(2, 4), Placement::from_begins({0, 1, 4}));
  EXPECT_NE(Placement::even(2, 4), Placement::even(4, 4));
}

TEST(PlacementText, SaysWorldExpertsAndBegins) {
  EXPECT_THAT(Placement::even(2, 5).repr(), Says("world=2", "experts=5", "[0, 3, 5]"));
}

}  // namespace
}  // namespace tileoverlap
