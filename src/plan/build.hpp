#pragma once
// The steps of make_plan, in the order in which it takes them. Each fills its part of the plan from the parts before.

#include <cstdint>
#include <limits>

#include "tileoverlap/plan/plan.hpp"

namespace tileoverlap::build {

// Band numbers and positions are 32-bit (a scheduled band is one 16-byte load); rows and offsets are 64-bit.
inline constexpr int64_t kMaxBands = std::numeric_limits<int32_t>::max();

void check_options(const PlanOptions& options);  // throws InvalidArgument, as the next one
void check_inputs(const Placement& placement, int32_t rank, const RouteCounts& counts, int64_t n,
                  const PlanOptions& options);

void lay_out_rows(const RouteCounts& counts, PlanData& plan);       // experts, runs, rows, dispatched_rows
void locate_own_copies(const RouteCounts& counts, PlanData& plan);  // staging_row, dispatch_row, returned_rows
void schedule_bands(PlanData& plan);                                // order
void cut_segments(PlanData& plan);                                  // segments

// What the rank computes and sends, all of the plan but for its own copies and the fingerprint, which look at the whole
// matrix. The inputs have been checked.
PlanData plan_work(const Placement& placement, int32_t rank, const RouteCounts& counts, int64_t n,
                   const PlanOptions& options);

}  // namespace tileoverlap::build
