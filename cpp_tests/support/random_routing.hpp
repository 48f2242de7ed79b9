#pragma once
// Random placements and counts, with empty ranks and experts, hot experts, and nothing at all.

#include <cstdint>
#include <vector>

#include "support/random.hpp"
#include "tileoverlap/plan/plan.hpp"

namespace tileoverlap::testing {

inline Placement random_placement(Random& random, int32_t max_world = 9, int32_t max_experts_on = 5) {
  std::vector<int32_t> begins{0};
  for (int32_t rank = random.between32(1, max_world); rank > 0; --rank) {
    begins.push_back(begins.back() + (random.chance(20) ? 0 : random.between32(1, max_experts_on)));
  }
  return Placement::from_begins(begins);
}

inline RouteCounts random_counts(Random& random, const Placement& placement, int32_t max_count = 40) {
  std::vector<int32_t> counts;
  const bool nothing = random.chance(5);
  const int32_t hot = random.between32(0, 40);  // an expert that draws much, where it exists
  for (int32_t owner = 0; owner < placement.world(); ++owner) {
    const bool idle = nothing || random.chance(15);
    for (int32_t expert = 0; expert < placement.experts(); ++expert) {
      const int32_t most = random.chance(30) ? 2 : expert == hot ? 4 * max_count : max_count;
      counts.push_back(idle || random.chance(30) ? 0 : random.between32(0, most));
    }
  }
  return RouteCounts(placement, std::move(counts));
}

inline PlanOptions random_options(Random& random) {
  return {.tile_m = random.between32(1, 17),
          .tile_n = random.between32(1, 40),
          .layout = random.chance(50) ? Layout::kOwnerAligned : Layout::kCompact,
          .bands_per_segment = random.between32(1, 4),
          .group = random.between32(1, 10)};
}

inline std::vector<Plan> make_plans(const Placement& placement, const RouteCounts& counts, int64_t n,
                                    const PlanOptions& options) {
  std::vector<Plan> plans;
  for (int32_t rank = 0; rank < placement.world(); ++rank)
    plans.push_back(make_plan(placement, rank, counts, n, options));
  return plans;
}

}  // namespace tileoverlap::testing
