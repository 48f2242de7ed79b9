// Breaks one thing at a time in a good plan: check_plans finds each of them and says where.

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "support/random_routing.hpp"
#include "tileoverlap/plan/check.hpp"

namespace tileoverlap {
namespace {

struct Mutant {
  const char* name;
  const char* said;  // stands in one of the findings
  void (*break_plan)(PlanData&);
};
// gtest prints parameters; a name says more than an address.
void PrintTo(const Mutant& mutant, std::ostream* out) { *out << mutant.name; }

// Rank 0 of three hosts experts 0 to 3; tile_m = 4, two bands a segment, groups of at most two.
//                                                   expert 0  1   2  3   4  5
const std::vector<int32_t> kCounts = {/* owner 0 */ 3,  5, 2,  1, 3, 7,
                                      /* owner 1 */ 17, 0, 10, 9, 2, 1,
                                      /* owner 2 */ 6,  0, 11, 0, 4, 0};
const Placement kPlacement = Placement::from_begins({0, 4, 5, 6});

std::vector<Plan> good_plans(Layout layout) {
  return testing::make_plans(kPlacement, RouteCounts(kPlacement, kCounts), 20,
                             {.tile_m = 4, .tile_n = 8, .layout = layout, .bands_per_segment = 2, .group = 2});
}

std::string findings(const std::vector<Plan>& plans) {
  std::string all;
  for (const std::string& finding : check_plans(plans, RouteCounts(kPlacement, kCounts))) all += finding + '\n';
  return all;
}

Segment& segment_of(PlanData& plan, int32_t bands, size_t from = 1) {  // not the first of the plan
  return *std::find_if(plan.segments.begin() + static_cast<std::ptrdiff_t>(from), plan.segments.end(),
                       [&](const Segment& s) { return s.last_band - s.first_band + 1 == bands; });
}

// Joins segment i + 1 to segment i.
void merge_segments(PlanData& plan, size_t i) {
  plan.segments[i].row_count += plan.segments[i + 1].row_count;
  plan.segments[i].last_band = plan.segments[i + 1].last_band;
  plan.segments.erase(plan.segments.begin() + static_cast<std::ptrdiff_t>(i) + 1);
}

size_t first_local(const PlanData& plan) {  // position in the order
  const auto remote_end = [&](const ScheduledBand& entry) {
    const ExpertRows& expert = plan.experts[static_cast<size_t>(entry.expert)];
    return expert.first_band + expert.remote_bands;
  };
  size_t i = 0;
  while (plan.order[i].band < remote_end(plan.order[i])) ++i;
  return i;
}

const Mutant kMutants[] = {
    // Every copy in exactly one row, inside its expert's rows; runs do not overlap.
    {"RunHasARowTooMany", "run", [](PlanData& p) { ++p.runs[0].row_count; }},
    {"RunHasARowTooFew", "run", [](PlanData& p) { --p.runs[0].row_count; }},
    {"RunOverlapsTheOneBefore", "run",
     [](PlanData& p) { p.runs[1].row_begin = p.runs[0].row_begin + p.runs[0].row_count - 1; }},
    {"RunLeavesItsExpert", "run", [](PlanData& p) { p.runs[2].row_begin = p.experts[1].row_begin; }},
    {"RunBeginsBeforeTheBuffer", "run", [](PlanData& p) { p.runs[0].row_begin = -4; }},
    {"RunsSwapOwners", "run", [](PlanData& p) { std::swap(p.runs[0].owner, p.runs[1].owner); }},
    {"RunNamesAnotherExpert", "run", [](PlanData& p) { p.runs[0].expert = 2; }},
    {"RunIsMissing", "run", [](PlanData& p) { p.runs.pop_back(); }},
    {"RunReturnsToAnotherStagingRow", "staging", [](PlanData& p) { ++p.runs[0].remote_row; }},
    {"LocalRunHasAnotherStagingRow", "staging", [](PlanData& p) { ++p.runs[2].remote_row; }},
    // The experts' rows and the totals.
    {"ExpertIsMissing", "expert", [](PlanData& p) { p.experts.pop_back(); }},
    {"ExpertsSwapNames", "expert", [](PlanData& p) { std::swap(p.experts[2].expert, p.experts[3].expert); }},
    {"ExpertBeginsABandLate", "expert", [](PlanData& p) { p.experts[1].row_begin += 4; }},
    {"ExpertNamesAnotherFirstBand", "expert", [](PlanData& p) { ++p.experts[1].first_band; }},
    {"ExpertHasABandTooFew", "expert", [](PlanData& p) { --p.experts[0].bands; }},
    {"ExpertHasARemoteBandTooFew", "expert", [](PlanData& p) { --p.experts[0].remote_bands; }},
    {"ExpertHasARemoteBandTooMany", "expert", [](PlanData& p) { ++p.experts[0].remote_bands; }},
    {"ExpertWorksOnARowTooMany", "expert", [](PlanData& p) { ++p.experts[1].rows, ++p.gemm_rows; }},
    {"ExpertCountsACopyTooMany", "expert", [](PlanData& p) { ++p.experts[1].valid_rows, ++p.valid_rows; }},
    {"ExpertsTradeACopy", "expert", [](PlanData& p) { ++p.experts[0].valid_rows, --p.experts[1].valid_rows; }},
    {"RowsAreABandTooMany", "rows", [](PlanData& p) { p.rows += 4; }},
    {"RowsAreARowTooMany", "rows", [](PlanData& p) { ++p.rows; }},
    {"GemmRowsAreOneTooMany", "gemm_rows", [](PlanData& p) { ++p.gemm_rows; }},
    {"ValidRowsAreOneTooFew", "valid_rows", [](PlanData& p) { --p.valid_rows; }},
    {"ColumnTilesAreOneTooFew", "tiles_n", [](PlanData& p) { --p.tiles_n; }},
    // Every band once, remote before local, groups inside one expert.
    {"BandIsNotScheduled", "order", [](PlanData& p) { p.order.pop_back(); }},
    {"BandIsScheduledTwice", "order", [](PlanData& p) { p.order[1].band = p.order[0].band; }},
    {"BandIsScheduledOnceMore", "order",
     [](PlanData& p) {
       p.order.push_back({p.order[0].band, p.order[0].expert, static_cast<int32_t>(p.order.size()), 1});
     }},
    {"BandDoesNotExist", "order", [](PlanData& p) { p.order[0].band = 9999; }},
    {"BandIsNegative", "order", [](PlanData& p) { p.order[0].band = -1; }},
    {"BandIsOfAnotherExpert", "order",
     [](PlanData& p) {
       for (ScheduledBand& entry : p.order) entry.expert = entry.expert == 3 ? 2 : entry.expert;
     }},
    {"ExpertOfABandIsOnAnotherRank", "order", [](PlanData& p) { p.order[0].expert = 5; }},
    {"LocalBandComesFirst", "order",
     [](PlanData& p) {
       ScheduledBand& local = p.order[first_local(p)];
       std::swap(p.order[0].band, local.band), std::swap(p.order[0].expert, local.expert);
     }},
    {"GroupIsEmpty", "order", [](PlanData& p) { p.order[0].group_size = 0; }},
    {"GroupIsLargerThanAsked", "order",
     [](PlanData& p) {
       for (size_t i = 1; i < 4; ++i) p.order[i].group_begin = 1, p.order[i].group_size = 3;
     }},
    {"GroupBeginsElsewhere", "order", [](PlanData& p) { p.order[2].group_begin = 2; }},
    {"GroupBeginsBeforeTheList", "order", [](PlanData& p) { p.order[0].group_begin = -1, p.order[0].group_size = 2; }},
    {"GroupEndsBehindTheList", "order",
     [](PlanData& p) {
       p.order.back().group_begin = static_cast<int32_t>(p.order.size()) - 1;
       p.order.back().group_size = 2;
     }},
    {"GroupCrossesExperts", "order",
     [](PlanData& p) {
       for (size_t i = 1; i < p.order.size(); ++i) {
         if (p.order[i].expert == p.order[i - 1].expert) continue;
         p.order[i - 1].group_begin = p.order[i].group_begin = static_cast<int32_t>(i) - 1;
         p.order[i - 1].group_size = p.order[i].group_size = 2;
         return;
       }
     }},
    // Every row of a remote run in exactly one segment, no other row in any.
    {"SegmentIsMissing", "segment", [](PlanData& p) { p.segments.erase(p.segments.begin() + 2); }},
    {"LastSegmentIsMissing", "segment", [](PlanData& p) { p.segments.pop_back(); }},
    {"SegmentIsSentTwice", "segment", [](PlanData& p) { p.segments.insert(p.segments.begin() + 2, p.segments[2]); }},
    {"SegmentSendsARowTooMany", "segment", [](PlanData& p) { ++p.segments.back().row_count; }},
    {"SegmentSendsARowTooFew", "segment", [](PlanData& p) { --p.segments.back().row_count; }},
    {"SegmentBeginsARowLate", "segment", [](PlanData& p) { ++p.segments[1].row_begin; }},
    {"SegmentIsEmpty", "segment",
     [](PlanData& p) {
       Segment empty = p.segments[1];
       empty.row_count = 0;
       p.segments.insert(p.segments.begin() + 1, empty);
     }},
    {"SegmentSendsLocalRows", "segment",
     [](PlanData& p) {
       const auto& run = p.runs[2];
       const auto band = static_cast<int32_t>(run.row_begin / 4);
       p.segments.push_back({band, band, 0, 0, run.row_begin, run.row_count, run.remote_row});
     }},
    {"SegmentGoesToAnotherOwner", "segment", [](PlanData& p) { p.segments[0].peer = 3 - p.segments[0].peer; }},
    {"SegmentGoesOutsideTheWorld", "segment", [](PlanData& p) { p.segments[0].peer = 3; }},
    {"SegmentNamesAnotherExpert", "segment", [](PlanData& p) { p.segments[0].expert = 3 - p.segments[0].expert; }},
    // Contiguous on both sides, cut at band borders, in the order in which their bands are done.
    {"SegmentLandsElsewhere", "segment", [](PlanData& p) { ++p.segments[2].remote_row; }},
    {"SegmentsSwapTheirTargets", "segment",
     [](PlanData& p) { std::swap(p.segments[1].remote_row, p.segments[2].remote_row); }},
    {"SegmentNamesAnEarlierFirstBand", "segment", [](PlanData& p) { --p.segments[1].first_band; }},
    {"SegmentNamesALaterLastBand", "segment", [](PlanData& p) { ++p.segments[0].last_band; }},
    {"SegmentIsCutInsideABand", "segment",
     [](PlanData& p) {
       Segment& whole = segment_of(p, 2);
       const auto at = &whole - p.segments.data();
       Segment second = whole;
       const int64_t cut = whole.row_begin / 4 * 4 + 6 - whole.row_begin;  // two rows into the second band
       whole.row_count = cut;
       second.row_begin += cut, second.remote_row += cut, second.row_count -= cut, ++second.first_band;
       p.segments.insert(p.segments.begin() + at + 1, second);
     }},
    {"SegmentsOfARunSwapPlaces", "segment", [](PlanData& p) { std::swap(p.segments[1], p.segments[2]); }},
    {"ALaterExpertIsSentFirst", "segment",
     [](PlanData& p) {
       const int32_t expert = p.segments[0].expert;
       std::stable_partition(p.segments.begin(), p.segments.end(),
                             [&](const Segment& s) { return s.expert != expert; });
     }},
    // The first and the last segment are one band, the others at most two.
    {"FirstSegmentIsTwoBands", "segment 0", [](PlanData& p) { merge_segments(p, 0); }},
    {"LastSegmentIsTwoBands", "segment", [](PlanData& p) { merge_segments(p, p.segments.size() - 2); }},
    {"SegmentIsThreeBands", "segment", [](PlanData& p) { merge_segments(p, 1); }},
    // The owner's side.
    {"StagingHasARowTooMany", "staging", [](PlanData& p) { ++p.staging_rows; }},
    {"StagingOfAnExpertBeginsARowLate", "staging", [](PlanData& p) { ++p.staging_row[4]; }},
    {"StagingOfTheLastExpertIsMissing", "staging", [](PlanData& p) { p.staging_row.pop_back(); }},
    {"DispatchGoesToAnotherRow", "dispatch", [](PlanData& p) { ++p.dispatch_row[4]; }},
    {"DispatchOfTheLastExpertIsMissing", "dispatch", [](PlanData& p) { p.dispatch_row.pop_back(); }},
    {"ExpectsARowTooManyBack", "expects", [](PlanData& p) { ++p.returned_rows[1]; }},
    {"ExpectsRowsFromItself", "expects", [](PlanData& p) { p.returned_rows[0] = 3; }},
    {"ReturnedRowsOfARankAreMissing", "returned_rows", [](PlanData& p) { p.returned_rows.pop_back(); }},
    {"ExpectsADispatchedRowTooFew", "dispatched", [](PlanData& p) { --p.dispatched_rows[2]; }},
    {"DispatchedRowsOfARankAreMissing", "dispatched_rows", [](PlanData& p) { p.dispatched_rows.pop_back(); }},
    {"AnOwnerHasACopyTooMany", "copies_of", [](PlanData& p) { ++p.copies_of[1]; }},
    {"CopiesOfARankAreMissing", "copies_of", [](PlanData& p) { p.copies_of.pop_back(); }},
};

class BrokenPlan : public ::testing::TestWithParam<std::tuple<Mutant, Layout>> {};

TEST_P(BrokenPlan, IsFound) {
  const auto& [mutant, layout] = GetParam();
  auto plans = good_plans(layout);
  ASSERT_EQ(findings(plans), "");
  auto broken = std::make_shared<PlanData>(*plans[0]);
  mutant.break_plan(*broken);
  plans[0] = Plan(broken);
  const std::string found = findings(plans);
  EXPECT_NE(found.find(mutant.said), std::string::npos) << "found only: " << found;
}

INSTANTIATE_TEST_SUITE_P(Mutants, BrokenPlan,
                         ::testing::Combine(::testing::ValuesIn(kMutants),
                                            ::testing::Values(Layout::kOwnerAligned, Layout::kCompact)),
                         [](const auto& test) {
                           return std::string(std::get<0>(test.param).name) +
                                  (std::get<1>(test.param) == Layout::kCompact ? "Compact" : "OwnerAligned");
                         });

TEST(BrokenAlignment, OfARemoteRunIsFoundThoughItsRowsAndSegmentsMoveAlong) {
  auto plans = good_plans(Layout::kOwnerAligned);
  auto broken = std::make_shared<PlanData>(*plans[0]);
  auto& run = broken->runs[1];  // expert 0, owner 2: 6 rows in 8
  ASSERT_EQ(run.row_count, 6);
  const int64_t old_begin = run.row_begin++;
  for (Segment& segment : broken->segments) {
    if (segment.expert == 0 && segment.peer == 2 && segment.row_begin >= old_begin) {
      // Rows 1..6 of the run's two bands: three in the first, three in the second.
      if (segment.row_begin == old_begin) {
        ++segment.row_begin;
        segment.row_count = segment.last_band > segment.first_band ? 6 : 3;
      } else {
        segment.row_count = 3;
        --segment.remote_row;
      }
    }
  }
  auto other = std::make_shared<PlanData>(*plans[2]);
  ++other->dispatch_row[0];
  plans[0] = Plan(broken);
  plans[2] = Plan(other);
  EXPECT_NE(findings(plans).find("multiple of tile_m"), std::string::npos) << findings(plans);
}

}  // namespace
}  // namespace tileoverlap
