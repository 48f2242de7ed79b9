#pragma once
// CUTLASS extension: tiles in the order of a plan. A tag selects it, so that CUTLASS itself stays as it is.
//
// Every warp asks for itself: the order is a pure function of the position, which needs one 16-byte load a tile. The
// load of the next tile is issued when the one before is taken, so that no warp waits for it.

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
    cutlass::FastDivmod tiles_n = {};
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
        tiles_(static_cast<uint32_t>(params.order.head->bands) * static_cast<uint32_t>(params.order.tiles_n.divisor)),
        current_(load(blockIdx.x)),
        next_(load(blockIdx.x + gridDim.x)) {}

  CUTLASS_DEVICE WorkTileInfo get_current_work() const {
    if (current_.task >= tiles_) return WorkTileInfo::invalid_work_tile();
    const auto in_group = current_.task - static_cast<uint32_t>(current_.entry.group_begin) *
                                              static_cast<uint32_t>(order_.tiles_n.divisor);
    const TileCoord tile = tile_in_group(current_.entry, position(current_.task), in_group);
    return {tile.band, tile.tile_n, tile.expert - order_.first_expert, true};
  }
  CUTLASS_DEVICE void advance_to_next_work(uint32_t count = 1) {
    const uint32_t step = gridDim.x * count, task = current_.task + step;
    current_ = next_.task == task ? next_ : load(task);  // a ping-pong kernel takes one step before it takes twos
    next_ = load(task + step);
  }
  template <class ClusterShape>
  CUTLASS_DEVICE WorkTileInfo initial_work_tile_info(ClusterShape) {
    return get_current_work();
  }
  CUTLASS_DEVICE bool is_last_tile(WorkTileInfo&, uint32_t count = 1) const {
    return current_.task + gridDim.x * count >= tiles_;
  }
  CUTLASS_DEVICE auto fetch_next_work(WorkTileInfo) {
    advance_to_next_work();
    return cute::make_tuple(get_current_work(), true);
  }
  template <class Pipeline, class State>
  CUTLASS_DEVICE auto fetch_next_work(WorkTileInfo tile, Pipeline&, State) {
    return fetch_next_work(tile);
  }

 private:
  struct Task {
    uint32_t task;  // 32 bits: prepare refuses more tiles
    ScheduledBand entry;
  };
  CUTLASS_DEVICE int32_t position(uint32_t task) const {
    int32_t quotient = 0, remainder = 0;
    order_.tiles_n(quotient, remainder, static_cast<int32_t>(task));
    return quotient;
  }
  // Nobody looks at the entry of a task that there is not.
  CUTLASS_DEVICE Task load(uint32_t task) const {
    Task loaded;
    loaded.task = task;
    if (task < tiles_) {
      const int4 raw = __ldg(reinterpret_cast<const int4*>(order_.bands + position(task)));
      loaded.entry = {raw.x, raw.y, raw.z, raw.w};
    }
    return loaded;
  }

  Order order_;
  uint32_t tiles_;
  Task current_, next_;
};

}  // namespace tileoverlap::sm90

namespace cutlass::gemm::kernel::detail {

template <class TileShape, class ClusterShape, uint32_t Stages>
struct TileSchedulerSelector<tileoverlap::sm90::PlannedTiles, arch::Sm90, TileShape, ClusterShape, Stages> {
  using Scheduler = tileoverlap::sm90::PlannedScheduler;
};

}  // namespace cutlass::gemm::kernel::detail
