#pragma once
// How many warps of an SM ship rows, and what each of them needs.
//
// The consumer has one CTA an SM, so that it takes the SMs that it was given and no others, whichever kernel the GPU
// starts first. Each of its warps is a lane that ships pieces by itself: few where the bulk engine copies through
// shared memory, more where the warps copy.

#include <cstdint>

#include "core/device_query.hpp"

namespace tileoverlap {

inline constexpr int32_t kBulkLanes = 4, kVectorLanes = 16;
inline constexpr int32_t kShipStages = 3, kShipStageBytes = 16'384;
inline constexpr int32_t kShipLaneBytes = kShipStages * kShipStageBytes + 128;  // of shared memory; barriers at the end

// Later chips have one, too, but run the code for older ones: what is compiled for 9.0 runs there alone.
inline bool has_bulk_engine(int32_t device) {
  constexpr int32_t kCompiledFor = 9;
  return device_attribute(cudaDevAttrComputeCapabilityMajor, device) == kCompiledFor;
}
inline int32_t ship_lanes(int32_t device) { return has_bulk_engine(device) ? kBulkLanes : kVectorLanes; }

}  // namespace tileoverlap
