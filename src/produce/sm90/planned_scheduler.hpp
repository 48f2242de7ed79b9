#pragma once
// CUTLASS extension: tiles in the order of a plan. A tag selects it, so that CUTLASS itself stays as it is.
//
// Every warp asks for itself: the order is a pure function of the position, which needs one 16-byte load a tile.

#include "cutlass/cutlass.h"
#include "cutlass/fast_math.h"
#include "cutlass/gemm/kernel/tile_scheduler.hpp"

#include "plan/device_plan.hpp"
#include "tileoverlap/plan/schedule.hpp"

namespace tileoverlap::sm90 {

struct PlannedTiles {};  // the tag

class PlannedScheduler : public cutlass::gemm::kernel::detail::PersistentTileSchedulerSm90 {
 public:
  using Base = cutlass::gemm::kernel::detail::PersistentTileSchedulerSm90;
  using WorkTileInfo = typename Base::WorkTileInfo;

  struct Order {
    const PlanHead* head = nullptr;
    const ScheduledBand* bands = nullptr;
    int32_t tiles_n = 1;
    int32_t first_expert = 0;  // tiles name experts by global id, weights are those of this rank
  };
  struct Arguments : Base::Arguments {
    Order order = {};
  };
  struct Params : Base::Params {
    Order order = {};
  };

  template <class ProblemShape, class TileShape, class ClusterShape>
  static Params to_underlying_arguments(ProblemShape problem, TileShape tile, ClusterShape cluster,
                                        const cutlass::KernelHardwareInfo& hardware, const Arguments& arguments,
                                        void* workspace = nullptr, uint32_t epilogue_subtiles = 1,
                                        uint32_t accumulators_in_flight = 1) {
    Params params;
    static_cast<typename Base::Params&>(params) = Base::to_underlying_arguments(
        problem, tile, cluster, hardware, arguments, workspace, epilogue_subtiles, accumulators_in_flight);
    params.order = arguments.order;
    return params;
  }

  CUTLASS_HOST_DEVICE PlannedScheduler() {}
  CUTLASS_DEVICE explicit PlannedScheduler(const Params& params)
      : Base(params),
        order_(params.order),
        tiles_(static_cast<uint32_t>(params.order.head->bands) * static_cast<uint32_t>(params.order.tiles_n)),
        task_(blockIdx.x) {}

  CUTLASS_DEVICE WorkTileInfo get_current_work() const { return at(task_); }
  CUTLASS_DEVICE void advance_to_next_work(uint32_t count = 1) { task_ += gridDim.x * count; }
  template <class ClusterShape>
  CUTLASS_DEVICE WorkTileInfo initial_work_tile_info(ClusterShape) {
    return at(task_);
  }
  CUTLASS_DEVICE bool is_last_tile(WorkTileInfo&, uint32_t count = 1) const {
    return task_ + gridDim.x * count >= tiles_;
  }
  CUTLASS_DEVICE auto fetch_next_work(WorkTileInfo) {
    advance_to_next_work();
    return cute::make_tuple(at(task_), true);
  }
  template <class Pipeline, class State>
  CUTLASS_DEVICE auto fetch_next_work(WorkTileInfo tile, Pipeline&, State) {
    return fetch_next_work(tile);
  }

 private:
  CUTLASS_DEVICE WorkTileInfo at(uint32_t task) const {
    if (task >= tiles_) return WorkTileInfo::invalid_work_tile();
    const TileCoord tile = tile_at(order_.bands, task, order_.tiles_n);
    return {tile.band, tile.tile_n, tile.expert - order_.first_expert, true};
  }

  Order order_;
  uint32_t tiles_, task_;  // 32 bits: prepare refuses more tiles
};

}  // namespace tileoverlap::sm90

namespace cutlass::gemm::kernel::detail {

template <class TileShape, class ClusterShape, uint32_t Stages>
struct TileSchedulerSelector<tileoverlap::sm90::PlannedTiles, arch::Sm90, TileShape, ClusterShape, Stages> {
  using Scheduler = tileoverlap::sm90::PlannedScheduler;
};

}  // namespace cutlass::gemm::kernel::detail
