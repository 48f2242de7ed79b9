// Compiles the plan's inline functions for the device: they must stay usable there, since the device planner is to
// give the same bits as the host planner. Nothing calls these kernels.

#include "plan/device_group.cuh"
#include "plan/device_planner.hpp"
#include "tileoverlap/plan/layout.hpp"
#include "tileoverlap/plan/schedule.hpp"
#include "tileoverlap/plan/segments.hpp"

namespace tileoverlap {

__global__ void expert_extents(const int32_t* counts, int32_t experts, int32_t rank, int32_t world, Layout layout,
                               int32_t tile_m, ExpertExtent* extents) {
  const auto expert = static_cast<int32_t>(blockIdx.x * blockDim.x + threadIdx.x);
  if (expert >= experts) return;
  extents[expert] = walk_runs(
      rank, world, layout, tile_m,
      [=](int32_t owner) { return int64_t{counts[static_cast<int64_t>(owner) * experts + expert]}; },
      [](int32_t, int64_t, int64_t) {});
}

__global__ void list_tiles(const ScheduledBand* order, int64_t tiles, int32_t tiles_n, TileCoord* list) {
  const auto task = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (task < tiles) list[task] = tile_at(order, task, tiles_n);
}

__global__ void plan_in_one_cta(const PlannerInput input, const PlannerScratch scratch, const DevicePlan plan,
                                PlannerResult* result) {
  DeviceGroup group;
  const PlannerResult planned = plan_call(group, input, scratch, plan);
  if (threadIdx.x == 0) *result = planned;
}

}  // namespace tileoverlap
