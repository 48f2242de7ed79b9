// Lanes that draw pieces in order and share what moves rows: cases small enough to reckon by hand. 1 GB/s moves 1,000
// bytes a microsecond.

#include "predict/ship_model.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "support/random.hpp"

namespace tileoverlap {
namespace {

using testing::Random;

constexpr double kUnlimited = 1e12;

ShipRates rates(int32_t lanes, double gbs) {
  return {.lanes = lanes,
          .beside_gbs = gbs,
          .alone_gbs = gbs,
          .alone_from_us = 0,
          .lane_gbs = kUnlimited,
          .link_gbs = kUnlimited,
          .network_gbs = kUnlimited};
}

std::vector<ShipTimes> shipped(const std::vector<ShipPiece>& pieces, const ShipRates& rates) {
  std::vector<ShipTimes> times(pieces.size());
  ship(pieces, rates, times);
  return times;
}

TEST(ShipModel, OnePieceTakesItsBytes) {
  const auto times = shipped({{5, 20'000, false}}, rates(4, 10));
  EXPECT_DOUBLE_EQ(times[0].begin_us, 5);
  EXPECT_DOUBLE_EQ(times[0].end_us, 7);
}

TEST(ShipModel, LanesShareTheSms) {
  // 10 GB/s for two, until the short one is through at 2 us; then the other has them for itself.
  const auto times = shipped({{0, 10'000, false}, {0, 30'000, false}}, rates(2, 10));
  EXPECT_DOUBLE_EQ(times[0].end_us, 2);
  EXPECT_DOUBLE_EQ(times[1].end_us, 4);
}

TEST(ShipModel, ALaneAloneHasItsOwnLimit) {
  ShipRates limited = rates(2, 10);
  limited.lane_gbs = 4;
  const auto times = shipped({{0, 8'000, false}, {10, 8'000, false}}, limited);
  EXPECT_DOUBLE_EQ(times[0].end_us, 2);
  EXPECT_DOUBLE_EQ(times[1].end_us, 12);
}

TEST(ShipModel, TheLinkIsShared) {
  ShipRates linked = rates(2, 10);
  linked.link_gbs = 5;
  const auto times = shipped({{0, 10'000, false}, {0, 10'000, false}}, linked);
  EXPECT_DOUBLE_EQ(times[0].end_us, 4);
  EXPECT_DOUBLE_EQ(times[1].end_us, 4);
}

TEST(ShipModel, LanesTakePiecesInOrderAndWaitForThem) {
  // The only lane has drawn the first piece: the second could leave at once and does not.
  const auto times = shipped({{10, 10'000, false}, {0, 10'000, false}}, rates(1, 10));
  EXPECT_DOUBLE_EQ(times[0].end_us, 11);
  EXPECT_DOUBLE_EQ(times[1].begin_us, 11);
  EXPECT_DOUBLE_EQ(times[1].end_us, 12);
}

TEST(ShipModel, BesideTheGemmSmsShipLess) {
  ShipRates changing = rates(1, 10);
  changing.beside_gbs = 5;
  changing.alone_from_us = 2;
  // 10,000 bytes by 2 us, 20,000 more in the 2 us behind.
  EXPECT_DOUBLE_EQ(shipped({{0, 30'000, false}}, changing)[0].end_us, 4);
}

TEST(ShipModel, TheNetworkSendsOneAfterTheOtherAndKeepsNoLane) {
  ShipRates networked = rates(1, 10);
  networked.network_gbs = 1;
  const auto times = shipped({{0, 5'000, true}, {0, 5'000, true}, {0, 10'000, false}}, networked);
  EXPECT_DOUBLE_EQ(times[0].end_us, 5);
  EXPECT_DOUBLE_EQ(times[1].end_us, 10);
  EXPECT_DOUBLE_EQ(times[2].begin_us, 0);
  EXPECT_DOUBLE_EQ(times[2].end_us, 1);
}

TEST(ShipModel, OfNothingIsNothing) { EXPECT_TRUE(shipped({}, rates(4, 10)).empty()); }

// Whatever the pieces: none begins before it is ready, at most as many are under way as there are lanes, no more than
// the rate is moved in any span of time, and while a piece that is drawn and ready waits for nothing, lanes are busy.
TEST(ShipModel, MovesNoMoreThanItCanAndNoLess) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    Random random(seed);
    const int32_t lanes = random.between32(1, 9);
    ShipRates given = rates(lanes, static_cast<double>(random.between(1, 40)));
    given.lane_gbs = static_cast<double>(random.between(1, 40));
    std::vector<ShipPiece> pieces;
    double bytes = 0, last_ready = 0;
    for (int64_t i = random.between(1, 60); i > 0; --i) {
      pieces.push_back(
          {static_cast<double>(random.between(0, 300)), static_cast<double>(random.between(1, 90'000)), false});
      bytes += pieces.back().bytes;
      last_ready = std::max(last_ready, pieces.back().ready_us);
    }
    const auto times = shipped(pieces, given);
    double last = 0;
    for (size_t i = 0; i < pieces.size(); ++i) {
      EXPECT_GE(times[i].begin_us, pieces[i].ready_us);
      EXPECT_GE(times[i].end_us - times[i].begin_us, pieces[i].bytes / (1e3 * given.lane_gbs) * (1 - 1e-9));
      last = std::max(last, times[i].end_us);
      int32_t under_way = 0;
      for (size_t j = 0; j < pieces.size(); ++j) {
        under_way += times[j].begin_us <= times[i].begin_us && times[j].end_us > times[i].begin_us ? 1 : 0;
      }
      EXPECT_LE(under_way, lanes);
    }
    EXPECT_GE(last, bytes / (1e3 * given.alone_gbs) * (1 - 1e-9));
    // One lane after the other at its slowest, behind the last piece to be ready, would be enough.
    const double slowest = std::min(given.lane_gbs, given.alone_gbs / lanes);
    EXPECT_LE(last, last_ready + bytes / (1e3 * slowest) * (1 + 1e-9));
  }
}

}  // namespace
}  // namespace tileoverlap
