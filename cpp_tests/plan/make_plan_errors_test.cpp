// What make_plan refuses, and the numbers its messages carry.

#include <gtest/gtest.h>

#include "support/messages.hpp"
#include "tileoverlap/core/error.hpp"
#include "tileoverlap/plan/plan.hpp"

namespace tileoverlap {
namespace {

using testing::message_of;
using testing::Says;

const Placement kPlacement = Placement::even(2, 4);
const RouteCounts kCounts(kPlacement, {1, 2, 3, 4, 5, 6, 7, 8});

std::string refusal(int32_t rank, int64_t n, const PlanOptions& options) {
  return message_of<InvalidArgument>([&] { make_plan(kPlacement, rank, kCounts, n, options); });
}

TEST(MakePlanRefuses, ARankOutsideTheWorld) {
  EXPECT_THAT(refusal(2, 8, {}), Says("rank", "0..1", "2"));
  EXPECT_THAT(refusal(-1, 8, {}), Says("rank", "0..1", "-1"));
}

TEST(MakePlanRefuses, CountsOfAnotherPlacement) {
  const Placement other = Placement::even(3, 6);
  EXPECT_THAT(message_of<InvalidArgument>([&] { make_plan(other, 0, kCounts, 8); }),
              Says("counts", "[2, 4]", "[3, 6]"));
  const Placement fewer = Placement::even(2, 3);
  EXPECT_THAT(message_of<InvalidArgument>([&] { make_plan(fewer, 0, kCounts, 8); }),
              Says("counts", "[2, 4]", "[2, 3]"));
}

TEST(MakePlanRefuses, SizesThatAreNotPositive) {
  EXPECT_THAT(refusal(0, 0, {}), Says("n", "positive", "0"));
  EXPECT_THAT(refusal(0, -8, {}), Says("n", "positive", "-8"));
  EXPECT_THAT(refusal(0, 8, {.tile_m = 0}), Says("tile_m", "positive", "0"));
  EXPECT_THAT(refusal(0, 8, {.tile_n = -1}), Says("tile_n", "positive", "-1"));
  EXPECT_THAT(refusal(0, 8, {.bands_per_segment = 0}), Says("bands_per_segment", "positive", "0"));
  EXPECT_THAT(refusal(0, 8, {.group = -2}), Says("group", "positive", "-2"));
}

TEST(MakePlanRefuses, AWidthThatDoesNotFitItsField) {
  EXPECT_THAT(refusal(0, int64_t{1} << 31, {}), Says("n", "2147483648", "2^31"));
}

TEST(MakePlanRefuses, MoreBandsThanAScheduledBandCanName) {
  const Placement placement = Placement::even(1, 2);
  const RouteCounts counts(placement, {2147483647, 2147483647});
  EXPECT_THAT(message_of<InvalidArgument>([&] { make_plan(placement, 0, counts, 8, {.tile_m = 1}); }),
              Says("bands", "2147483647", "tile_m = 1", "expert 1"));
}

TEST(PlanRun, RefusesExpertsOfOtherRanksAndOwnersOutsideTheWorld) {
  const Plan plan = make_plan(kPlacement, 1, kCounts, 8);
  EXPECT_EQ(plan.run(3, 0).row_count, 4);
  EXPECT_THAT(message_of<InvalidArgument>([&] { plan.run(1, 0); }), Says("rank 1", "2..3", "expert 1"));
  EXPECT_THAT(message_of<InvalidArgument>([&] { plan.run(4, 0); }), Says("expert 4"));
  EXPECT_THAT(message_of<InvalidArgument>([&] { plan.run(2, 2); }), Says("owner 2"));
  EXPECT_THAT(message_of<InvalidArgument>([&] { plan.run(2, -1); }), Says("owner -1"));
}

TEST(PlanText, SaysRankSizesAndOptions) {
  const Plan plan = make_plan(kPlacement, 1, kCounts, 24, {.tile_m = 4, .tile_n = 16, .layout = Layout::kOwnerAligned});
  EXPECT_THAT(plan.repr(), Says("rank=1", "n=24", "valid_rows=22", "tile=(4, 16)", "owner_aligned"));
}

TEST(PlanOptionsText, NamesEveryChoice) {
  EXPECT_THAT(repr(PlanOptions{.tile_m = 64, .tile_n = 256, .bands_per_segment = 2, .group = 4}),
              Says("64", "256", "compact", "bands_per_segment=2", "group=4"));
}

TEST(LayoutNames, ParseBackAndRefuseOthers) {
  for (const Layout layout : {Layout::kOwnerAligned, Layout::kCompact}) EXPECT_EQ(parse_layout(name(layout)), layout);
  EXPECT_THAT(message_of<InvalidArgument>([] { parse_layout("dense"); }),
              Says("layout", "dense", "owner_aligned", "compact"));
}

}  // namespace
}  // namespace tileoverlap
