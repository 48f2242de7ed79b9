#pragma once
// Where rows lie on the rank that hosts their expert: pure arithmetic on counts, the same on host and device.
//
// Expert by expert, each expert starting at a multiple of tile_m. Inside an expert one run per owner, in the order
// rank+1, rank+2, ... (mod world), and the rank's own run last. Starting at rank+1 spreads the load: in the paper's
// order every rank would send to rank 0 first.

#include <cstdint>

#include "tileoverlap/core/api.hpp"
#include "tileoverlap/core/math.hpp"
#include "tileoverlap/plan/options.hpp"

namespace tileoverlap {

// Owner of the run at `position` (0 .. world-1) inside every expert on `rank`.
TILEOVERLAP_HD constexpr int32_t owner_at(int32_t rank, int32_t position, int32_t world) {
  const int64_t owner = static_cast<int64_t>(rank) + 1 + position;
  return static_cast<int32_t>(owner % world);
}

// Inverse of owner_at.
TILEOVERLAP_HD constexpr int32_t position_of(int32_t rank, int32_t owner, int32_t world) {
  return owner > rank ? owner - rank - 1 : owner - rank - 1 + world;
}

// Rows that a run takes up: its copies, and in the owner-aligned layout the padding behind a remote run.
TILEOVERLAP_HD constexpr int64_t run_height(int64_t copies, bool is_local, Layout layout, int32_t tile_m) {
  return layout == Layout::kOwnerAligned && !is_local ? align_up(copies, tile_m) : copies;
}

// One expert's rows. Rows count from the expert's first row.
struct ExpertExtent {
  int64_t rows = 0;         // the GEMM's work: copies and the padding behind remote runs
  int64_t valid_rows = 0;   // copies
  int64_t remote_rows = 0;  // rows up to the end of the last remote run
};

// Walks the runs of one expert on `rank` in row order. `copies_of(owner)` gives the counts matrix's column of this
// expert; `visit(owner, row_begin, copies)` sees each run, the empty ones too. Returns the expert's extent.
template <class CopiesOf, class Visit>
TILEOVERLAP_HD ExpertExtent walk_runs(int32_t rank, int32_t world, Layout layout, int32_t tile_m, CopiesOf copies_of,
                                      Visit visit) {
  ExpertExtent extent;
  for (int32_t position = 0; position < world; ++position) {
    const int32_t owner = owner_at(rank, position, world);
    const int64_t copies = copies_of(owner);
    visit(owner, extent.rows, copies);
    extent.rows += run_height(copies, owner == rank, layout, tile_m);
    extent.valid_rows += copies;
    if (owner != rank) extent.remote_rows = extent.rows;
  }
  return extent;
}

}  // namespace tileoverlap
