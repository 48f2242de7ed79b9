#pragma once
// The layout, written down row by row instead of computed: what plans are compared with.

#include <cstdint>
#include <vector>

#include "tileoverlap/plan/options.hpp"
#include "tileoverlap/routing/counts.hpp"

namespace tileoverlap::testing {

// One row of a rank's GEMM buffers.
struct RowUse {
  int32_t expert = -1;
  int32_t owner = -1;    // -1: padding
  int64_t copy = -1;     // number among the owner's copies for this expert
  int64_t staging = -1;  // the copy's row in its owner's staging
  bool worked = false;   // part of the GEMM's work: a copy, or padding between runs
};

// The rows of `rank`, each expert padded to whole bands.
inline std::vector<RowUse> write_row_table(const Placement& placement, int32_t rank, const RouteCounts& counts,
                                           const PlanOptions& options) {
  std::vector<RowUse> table;
  const auto pad = [&](int32_t expert, bool worked) {
    while (table.size() % static_cast<size_t>(options.tile_m) != 0) {
      table.push_back({.expert = expert, .worked = worked});
    }
  };
  for (int32_t expert = placement.begin(rank); expert < placement.end(rank); ++expert) {
    for (int32_t step = 1; step <= placement.world(); ++step) {
      const int32_t owner = (rank + step) % placement.world();
      int64_t staging = 0;
      for (int32_t before = 0; before < expert; ++before) staging += counts.at(owner, before);
      for (int64_t copy = 0; copy < counts.at(owner, expert); ++copy) {
        table.push_back({expert, owner, copy, staging + copy, true});
      }
      if (options.layout == Layout::kOwnerAligned && owner != rank) pad(expert, true);
    }
    pad(expert, false);
  }
  return table;
}

}  // namespace tileoverlap::testing
