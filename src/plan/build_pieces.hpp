#pragma once
// The device's form of a plan that the host has made.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "plan/device_plan.hpp"
#include "tileoverlap/plan/capacity.hpp"
#include "tileoverlap/plan/plan.hpp"

namespace tileoverlap {

// Cuts each segment of r rows into ceil(r / piece_rows) pieces, all of piece_rows rows but the last, in the order of
// the segments. `pieces` is overwritten.
void build_pieces(const PlanData& plan, int64_t piece_rows, std::vector<Piece>& pieces);

// Most pieces that rank's plan can have. Errors: InvalidArgument, as for max_segments.
int64_t max_pieces(const Placement& placement, int32_t rank, const Capacity& capacity, const PlanOptions& options,
                   int64_t piece_rows);

// Writes the plan into `image`: layout.total bytes of host memory, aligned for PlanHead, to be uploaded in one copy.
// The call is not refused. Does not allocate. Errors: CapacityError where the layout is too small; nothing is written.
void write_plan(const PlanData& plan, int64_t piece_rows, const DevicePlanLayout& layout, std::byte* image);

}  // namespace tileoverlap
