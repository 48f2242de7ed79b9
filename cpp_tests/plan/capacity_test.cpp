// Bounds on what any routing can need: worked-out numbers, and small cases where every routing is tried.

#include "tileoverlap/plan/capacity.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <vector>

#include "support/messages.hpp"
#include "support/random_routing.hpp"
#include "tileoverlap/core/error.hpp"

namespace tileoverlap {
namespace {

using testing::message_of;
using testing::Random;
using testing::Says;

PlanOptions aligned(int32_t tile_m) { return {.tile_m = tile_m, .layout = Layout::kOwnerAligned}; }
PlanOptions compact(int32_t tile_m) { return {.tile_m = tile_m, .layout = Layout::kCompact}; }

TEST(PlanCapacity, OwnerPaddingDominatesTheBoundForFewTokens) {
  const Capacity distinct{.max_tokens = 64, .top_k = 8, .distinct = true}, any{.max_tokens = 64, .top_k = 8};
  EXPECT_EQ(max_padded_bands(32, 7, distinct, 128), 224);
  EXPECT_EQ(max_padded_bands(32, 7, distinct, 128) * 128, 28672);
  EXPECT_EQ(max_padded_bands(32, 7, any, 128), 245);
  EXPECT_EQ(max_padded_bands(32, 7, any, 128) * 128, 31360);
}

TEST(PlanCapacity, CompactNeedsNoPaddingPerOwner) {
  const Placement placement = Placement::even(8, 256);
  const Capacity any{.max_tokens = 64, .top_k = 8};
  // 8 * 512 copies: one row opens each of 32 experts, the other 4064 fill whole bands.
  EXPECT_EQ(max_bands(placement, 0, any, compact(128)), 32 + 4064 / 128);
  EXPECT_GE(max_bands(placement, 0, any, aligned(128)), 245 + 512 / 128);  // the rank's own 512 rows come on top
}

// Calls visit(counts) for every way in which one owner's tokens can be spread over `experts`.
void for_each_spread(int64_t experts, const Capacity& capacity,
                     const std::function<void(const std::vector<int32_t>&)>& visit) {
  // A token that names distinct experts gives each at most one copy, and no more copies than there are experts.
  const int64_t most = capacity.distinct ? capacity.max_tokens : capacity.max_tokens * capacity.top_k;
  const int64_t slots = capacity.distinct ? std::min<int64_t>(capacity.top_k, experts) : capacity.top_k;
  std::vector<int32_t> counts;
  const std::function<void(int64_t)> fill = [&](int64_t left) {
    if (counts.size() == static_cast<size_t>(experts)) return visit(counts);
    for (int64_t count = 0; count <= std::min(left, most); ++count) {
      counts.push_back(static_cast<int32_t>(count));
      fill(left - count);
      counts.pop_back();
    }
  };
  fill(capacity.max_tokens * slots);
}

TEST(PlanCapacity, PaddedBandsAreExactlyThoseOfTheWorstRouting) {
  for (int64_t experts = 0; experts <= 5; ++experts) {
    for (int64_t tokens = 0; tokens <= 5; ++tokens) {
      for (int32_t top_k = 1; top_k <= 3; ++top_k) {
        for (const bool distinct : {false, true}) {
          const Capacity capacity{.max_tokens = tokens, .top_k = top_k, .distinct = distinct};
          for (int32_t tile_m = 1; tile_m <= 5; ++tile_m) {
            int64_t worst = 0;
            for_each_spread(experts, capacity, [&](const std::vector<int32_t>& counts) {
              int64_t bands = 0;
              for (const int32_t count : counts) bands += (count + tile_m - 1) / tile_m;
              worst = std::max(worst, bands);
            });
            ASSERT_EQ(max_padded_bands(experts, 1, capacity, tile_m), worst)
                << experts << " experts, " << tokens << " tokens, top " << top_k << (distinct ? ", distinct" : "")
                << ", tile_m " << tile_m;
            ASSERT_EQ(max_padded_bands(experts, 3, capacity, tile_m), 3 * worst);
          }
        }
      }
    }
  }
}

TEST(PlanCapacity, NoRoutingOfTwoOwnersNeedsMoreThanTheBounds) {
  for (int32_t experts = 1; experts <= 3; ++experts) {
    const Placement placement = Placement::from_begins({0, experts, experts});
    for (int64_t tokens = 0; tokens <= 3; ++tokens) {
      for (int32_t top_k = 1; top_k <= 2; ++top_k) {
        for (const bool distinct : {false, true}) {
          const Capacity capacity{.max_tokens = tokens, .top_k = top_k, .distinct = distinct};
          for (const int32_t tile_m : {1, 2, 3}) {
            for (const Layout layout : {Layout::kOwnerAligned, Layout::kCompact}) {
              const PlanOptions options{.tile_m = tile_m, .layout = layout};
              int64_t worst_bands = 0, worst_segments = 0;
              for_each_spread(experts, capacity, [&](const std::vector<int32_t>& first) {
                for_each_spread(experts, capacity, [&](const std::vector<int32_t>& second) {
                  std::vector<int32_t> counts = first;
                  counts.insert(counts.end(), second.begin(), second.end());
                  const Plan plan = make_plan(placement, 0, RouteCounts(placement, counts), 8, options);
                  worst_bands = std::max<int64_t>(worst_bands, plan.bands());
                  worst_segments = std::max(worst_segments, static_cast<int64_t>(plan->segments.size()));
                });
              });
              const int64_t bands = max_bands(placement, 0, capacity, options);
              if (distinct) {
                ASSERT_LE(worst_bands, bands);
              } else {
                ASSERT_EQ(worst_bands, bands) << repr(options) << ' ' << experts << ' ' << tokens << ' ' << top_k;
              }
              ASSERT_LE(worst_segments, max_segments(placement, 0, capacity, options)) << repr(options);
            }
          }
        }
      }
    }
  }
}

TEST(PlanCapacity, NoRandomPlanNeedsMoreThanTheBounds) {
  Random random(51);
  for (int round = 0; round < 300; ++round) {
    const Placement placement = testing::random_placement(random);
    const RouteCounts counts = testing::random_counts(random, placement);
    const PlanOptions options = testing::random_options(random);
    const int32_t top_k = random.between32(1, 8);
    int64_t copies = 0;
    for (int32_t owner = 0; owner < placement.world(); ++owner) copies = std::max(copies, counts.copies_of(owner));
    const Capacity capacity{.max_tokens = ceil_div(copies, top_k), .top_k = top_k};
    for (const Plan& plan : testing::make_plans(placement, counts, 24, options)) {
      ASSERT_LE(plan.bands(), max_bands(placement, plan->rank, capacity, options)) << plan.repr();
      ASSERT_LE(static_cast<int64_t>(plan->segments.size()), max_segments(placement, plan->rank, capacity, options));
      ASSERT_LE(plan->staging_rows, capacity.max_tokens * capacity.top_k);
    }
  }
}

TEST(PlanCapacity, OfARankWithoutExpertsIsZero) {
  const Placement placement = Placement::from_begins({0, 0, 4});
  const Capacity capacity{.max_tokens = 100, .top_k = 2};
  EXPECT_EQ(max_bands(placement, 0, capacity, aligned(16)), 0);
  EXPECT_EQ(max_bands(placement, 0, capacity, compact(16)), 0);
  EXPECT_EQ(max_segments(placement, 0, capacity, compact(16)), 0);
  EXPECT_GT(max_bands(placement, 1, capacity, compact(16)), 0);
}

TEST(PlanCapacity, MaxTokensNeedNoAlignment) {
  const Placement placement = Placement::even(2, 4);
  const PlanOptions options{.tile_m = 128, .bands_per_segment = 2};
  const SizeReport report =
      size_report(placement, 0, {.max_tokens = 672, .top_k = 1}, DType::kBFloat16, 64, 64, options);
  EXPECT_EQ(report.staging_bytes, 672 * 64 * 2);
  // 1344 copies over two experts: a row opens each, the other 1342 fill 10 bands.
  EXPECT_EQ(report.output_bytes, 12 * 128 * 64 * 2);
}

TEST(SizeReport, StagingIsTheSameForEveryWorldSize) {
  for (const int32_t world : {2, 8}) {
    const SizeReport report = size_report(Placement::even(world, 64), 0, {.max_tokens = 1024, .top_k = 6},
                                          DType::kBFloat16, 2048, 7168, compact(128));
    EXPECT_EQ(report.staging_bytes, 88080384);
  }
}

TEST(SizeReport, AddsUpItsParts) {
  const SizeReport report = size_report(Placement::even(4, 8), 1, {.max_tokens = 100, .top_k = 2}, DType::kFloat32, 32,
                                        64, {.tile_m = 16, .tile_n = 48});
  // 800 copies over two experts: 2 + 798 / 16 = 51 bands.
  EXPECT_EQ(report.output_bytes, 51 * 16 * 64 * 4);
  EXPECT_EQ(report.input_bytes, 51 * 16 * 32 * 4);
  EXPECT_GE(report.flag_bytes, 51 * 2 * 4);  // two column tiles
  EXPECT_EQ(report.counter_bytes, 0);        // a matter of the executor
  EXPECT_EQ(report.total_bytes(),
            report.staging_bytes + report.output_bytes + report.input_bytes + report.flag_bytes + report.counter_bytes);
}

TEST(SizeReport, RowsAreWholeBands) {
  const Placement placement = Placement::even(4, 8);
  const Capacity capacity{.max_tokens = 100, .top_k = 2};
  EXPECT_EQ(max_rows(placement, 1, capacity, compact(16)), 51 * 16);
  EXPECT_EQ(max_rows(Placement::even(2, 0), 1, capacity, compact(16)), 0);
}

TEST(SizeReport, OfNoTokensHoldsNoRows) {
  const SizeReport report =
      size_report(Placement::even(4, 8), 1, {.max_tokens = 0, .top_k = 2}, DType::kFloat32, 32, 64, {});
  EXPECT_EQ(report.staging_bytes, 0);
  EXPECT_EQ(report.output_bytes, 0);
}

TEST(SizeReport, CountsIn64Bits) {
  const SizeReport report =
      size_report(Placement::even(1, 1), 0, {.max_tokens = 600001, .top_k = 1}, DType::kBFloat16, 16, 7168, compact(1));
  EXPECT_EQ(report.staging_bytes, int64_t{600001} * 7168 * 2);
  EXPECT_EQ(report.output_bytes, int64_t{600001} * 7168 * 2);
}

TEST(SizeReport, RefusesWhatItCannotSize) {
  const Placement placement = Placement::even(2, 4);
  const auto refusal = [&](int32_t rank, const Capacity& capacity, int64_t k, int64_t n, const PlanOptions& options) {
    return message_of<InvalidArgument>([&] { size_report(placement, rank, capacity, DType::kFloat32, k, n, options); });
  };
  const Capacity good{.max_tokens = 8, .top_k = 2};
  EXPECT_THAT(refusal(2, good, 8, 8, {}), Says("rank", "0..1", "2"));
  EXPECT_THAT(refusal(0, good, 0, 8, {}), Says("k = 0"));
  EXPECT_THAT(refusal(0, good, 8, -4, {}), Says("n = -4"));
  EXPECT_THAT(refusal(0, {.max_tokens = -1, .top_k = 2}, 8, 8, {}), Says("max_tokens", "-1"));
  EXPECT_THAT(refusal(0, {.max_tokens = 8, .top_k = 0}, 8, 8, {}), Says("top_k", "0"));
  EXPECT_THAT(refusal(0, good, 8, 8, {.tile_m = 0}), Says("tile_m", "0"));
  EXPECT_THAT(refusal(0, good, 8, 8, {.tile_n = -1}), Says("tile_n", "-1"));
}

TEST(SizeReport, RefusesBytesPast63Bits) {
  const int64_t wide = std::numeric_limits<int32_t>::max();
  const Placement placement = Placement::even(2, 4);
  const Capacity capacity{.max_tokens = int64_t{1} << 29, .top_k = 3};
  EXPECT_THAT(message_of<InvalidArgument>([&] { size_report(placement, 0, capacity, DType::kFloat32, 8, wide, {}); }),
              Says("2147483647", "2^63"));
  EXPECT_THAT(message_of<InvalidArgument>([&] {
                size_report(placement, 0, {.max_tokens = int64_t{1} << 31, .top_k = 2}, DType::kFloat32, 8, 8, {});
              }),
              Says("max_tokens", "top_k", "2147483648", "2"));
}

TEST(MaxPaddedBands, RefusesATileWithoutRows) {
  EXPECT_THAT(message_of<InvalidArgument>([] { max_padded_bands(4, 2, {.max_tokens = 8, .top_k = 1}, 0); }),
              Says("tile_m", "0"));
  EXPECT_THAT(message_of<InvalidArgument>(
                  [] { max_bands(Placement::even(2, 4), 0, {.max_tokens = 8, .top_k = 1}, {.tile_m = -2}); }),
              Says("tile_m", "-2"));
}

}  // namespace
}  // namespace tileoverlap
