#pragma once
// CUTLASS extension: behind each tile, its flag. Rows may go to their owners at once.

#include "cute/tensor.hpp"
#include "cutlass/cutlass.h"

#include "core/ptx.cuh"
#include "produce/gpu_producer.hpp"
#include "produce/sm90/store_to_owners.hpp"

namespace tileoverlap::sm90 {

// Base is the collective epilogue that CUTLASS builds; it stores the tile by TMA.
template <class Base>
class PublishEpilogue : public Base {
 public:
  static constexpr bool kStoresToOwners = std::is_same_v<typename Base::CopyOpS2G, StoreToOwners>;
  struct Publish {
    PublishTask task = {};
    StoreTask store = {};
    int32_t tiles_n = 0;
  };
  struct Arguments : Base::Arguments {
    Publish publish = {};
  };
  struct Params : Base::Params {
    Publish publish = {};
  };

  template <class ProblemShape>
  static Params to_underlying_arguments(const ProblemShape& problem, const Arguments& arguments, void* workspace) {
    Params params;
    static_cast<typename Base::Params&>(params) = Base::to_underlying_arguments(problem, arguments, workspace);
    params.publish = arguments.publish;
    if constexpr (kStoresToOwners) params.tma_store_d.task = arguments.publish.store;
    return params;
  }

  CUTLASS_DEVICE PublishEpilogue(const Params& params, typename Base::TensorStorage& storage)
      : Base(params, storage),
        publish_(params.publish),
        epoch_(params.publish.task.flags == nullptr ? 0 : *params.publish.task.epoch) {}

  // As CUTLASS's kernels call it; `thread` counts the threads that share the tile.
  template <class LoadPipeline, class LoadState, class StorePipeline, class StoreState, class Problem, class Tile,
            class Coord, class Accumulators, class TiledMma>
  CUTLASS_DEVICE auto store(LoadPipeline load_pipeline, LoadState load_state, StorePipeline store_pipeline,
                            StoreState store_state, Problem problem, Tile tile, Coord coord, Accumulators accumulators,
                            TiledMma tiled_mma, int thread, typename Base::TensorStorage& storage, int subtile = -1) {
    const auto states = Base::store(load_pipeline, load_state, store_pipeline, store_state, problem, tile, coord,
                                    accumulators, tiled_mma, thread, storage, subtile);
    const auto [band, tile_n, k_tile, expert] = coord;
    publish(static_cast<int32_t>(band), static_cast<int32_t>(tile_n), thread);
    return states;
  }

 private:
  // All warps of the tile have handed their part to the store thread (named barriers inside Base::store); that thread,
  // the elected one of the first warp, waits until the stores it committed are complete and releases the flag. At once
  // and not one tile later: measured, the late form costs 2 %, this one less than 1 %.
  CUTLASS_DEVICE void publish(int32_t band, int32_t tile_n, int thread) const {
    const PublishTask& task = publish_.task;
    if (task.flags == nullptr && task.stamps == nullptr) return;
    if (thread / 32 != 0 || !cute::elect_one_sync()) return;
    ptx::wait_for_bulk_stores();
    const int64_t tile = element_offset(band, publish_.tiles_n, tile_n);
    if (task.stamps != nullptr) task.stamps[tile] = {ptx::global_timer_ns(), blockIdx.x, 0};
    // Release: pairs with the acquire of the consumer that sees this call's epoch.
    if (task.flags != nullptr && band != task.withheld_band) ptx::store_release_gpu(task.flags + tile, epoch_);
  }

  Publish publish_;
  uint64_t epoch_;  // read once: behind each tile it would hold up the warpgroup for a trip to L2
};

// The same for a gated activation: the accumulators hold gate columns in their first half and up columns in their
// second, in the same threads; what is stored is silu(gate) * up, half as wide. Base is built for that half.
template <class Base, class HalfTile, class HalfMma>
class GatedEpilogue : public PublishEpilogue<Base> {
 public:
  using Publishing = PublishEpilogue<Base>;
  using Publishing::Publishing;

  template <class LoadPipeline, class LoadState, class StorePipeline, class StoreState, class Problem, class Tile,
            class Coord, class Accumulators, class TiledMma>
  CUTLASS_DEVICE auto store(LoadPipeline load_pipeline, LoadState load_state, StorePipeline store_pipeline,
                            StoreState store_state, Problem problem, Tile, Coord coord, Accumulators accumulators,
                            TiledMma, int thread, typename Base::TensorStorage& storage, int subtile = -1) {
    auto product = cute::partition_fragment_C(HalfMma{}, cute::take<0, 2>(HalfTile{}));
    // Registers of an accumulator: ((2, 2, columns / 8), rows of the tile, 1), column blocks slowest in the first mode.
    constexpr int kPerBlockRow = cute::size<0>(decltype(product.layout()){});
    static_assert(2 * kPerBlockRow == cute::size<0>(decltype(accumulators.layout()){}));
    static_assert(cute::size<1>(decltype(product.layout()){}) == cute::size<1>(decltype(accumulators.layout()){}));
    CUTLASS_PRAGMA_UNROLL
    for (int m = 0; m < cute::size<1>(product); ++m) {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kPerBlockRow; ++i) {
        const float gate = accumulators(i, m, 0), up = accumulators(i + kPerBlockRow, m, 0);
        product(i, m, 0) = gate / (1.0f + expf(-gate)) * up;
      }
    }
    return Publishing::store(load_pipeline, load_state, store_pipeline, store_state, problem, HalfTile{}, coord,
                             product, HalfMma{}, thread, storage, subtile);
  }
};

}  // namespace tileoverlap::sm90
