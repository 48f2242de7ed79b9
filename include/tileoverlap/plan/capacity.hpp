#pragma once
// The most that any routing can need, so that buffers sized here never overflow: there is no drop mode.

#include <cstdint>

#include "tileoverlap/core/dtype.hpp"
#include "tileoverlap/plan/options.hpp"
#include "tileoverlap/routing/placement.hpp"

namespace tileoverlap {

// What a session is prepared for.
struct Capacity {
  int64_t max_tokens = 0;  // on any one rank, >= 0
  int32_t top_k = 0;       // slots of a token, > 0
  bool distinct = false;   // a token never names an expert twice (a tighter bound); false: duplicates are legal
};

// Most bands that `owner_count` owners' runs can take in one expert-by-owner layout of `experts` experts, when each
// run is padded to tile_m by itself.
TILEOVERLAP_API int64_t max_padded_bands(int64_t experts, int64_t owner_count, const Capacity& capacity,
                                         int32_t tile_m);

// Most bands that rank's GEMM can have under `options`, and most rows: bands * tile_m.
TILEOVERLAP_API int64_t max_bands(const Placement& placement, int32_t rank, const Capacity& capacity,
                                  const PlanOptions& options);

TILEOVERLAP_API int64_t max_rows(const Placement& placement, int32_t rank, const Capacity& capacity,
                                 const PlanOptions& options);

// Most segments that rank's plan can have.
TILEOVERLAP_API int64_t max_segments(const Placement& placement, int32_t rank, const Capacity& capacity,
                                     const PlanOptions& options);

// Bytes that one rank's session needs, part by part.
struct SizeReport {
  int64_t staging_bytes = 0;    // returned rows on the owner: max_tokens * top_k rows, whatever the world size
  int64_t output_bytes = 0;     // the GEMM's output rows
  int64_t input_bytes = 0;      // the GEMM's input rows (layers only: run() reads the caller's)
  int64_t projected_bytes = 0;  // rows between the two projections (layers that have two)
  int64_t flag_bytes = 0;
  int64_t counter_bytes = 0;  // arrival counters, credits and mailboxes

  TILEOVERLAP_API int64_t total_bytes() const;
};
//   k, n  elements of a GEMM input row and of a returned row.
// The parts that depend on the executor (projected, counters) are 0 here; Session::sizes has them.
// Errors: InvalidArgument for sizes that are not positive or whose bytes pass 2^63.
TILEOVERLAP_API SizeReport size_report(const Placement& placement, int32_t rank, const Capacity& capacity, DType dtype,
                                       int64_t k, int64_t n, const PlanOptions& options);

}  // namespace tileoverlap
