#pragma once
// How one warp moves rows to mapped memory. Several of them share an SM: while one waits, the others copy.
//
// What bounds an SM is what it writes: 32 bytes a clock, by vectors or by the bulk engine alike (H200: 63 GB/s; it
// reads 134 GB/s by vectors and 186 by the bulk engine, and copies 50). Under the GEMM's load the bulk engine keeps 8 %
// more of it than vectors, since it has more on its way.

#include <cstddef>
#include <cstdint>

#include "consume/ship_lanes.hpp"
#include "core/ptx.cuh"
#include "tileoverlap/core/math.hpp"

namespace tileoverlap {

// By the bulk engine, through shared memory: compute capability 9.0.
class BulkLane {
 public:
  // By all lanes of a warp. `shared`: kShipLaneBytes of this warp alone, aligned to 128 bytes.
  __device__ explicit BulkLane(std::byte* shared) : stages_(shared) {
    if (threadIdx.x % 32 == 0) {
      for (int32_t stage = 0; stage < kShipStages; ++stage) ptx::init_barrier(barrier(stage), 1);
      ptx::fence_barrier_init();
    }
    __syncwarp();
  }

  // By all lanes. `bytes`: a multiple of 16. They are added to `counter` once they are written: by a later copy, so
  // that this lane need not stand still meanwhile, or by flush.
  __device__ void copy(std::byte* to, const std::byte* from, int64_t bytes, uint64_t* counter) {
    if (threadIdx.x % 32 == 0) move(to, from, bytes, counter);
    __syncwarp();
  }
  // Where the time goes at which the next copy is counted; null: nowhere.
  __device__ void stamp_next(uint64_t* counted_ns) { next_stamp_ = counted_ns; }
  // By all lanes, or by lane 0 alone. On return all that was copied is written and counted. In front of whatever takes
  // long: somebody may be waiting for it.
  __device__ void flush() {
    if (threadIdx.x % 32 != 0 || uncounted_ == 0) return;
    ptx::wait_for_bulk_stores();
    count();
  }

 private:
  // Stages whose bytes may still be leaving while the next ones are loaded.
  static constexpr int32_t kLeaving = 1;
  // Stores of a copy behind which the copy before is looked at. It has been written by then.
  static constexpr int32_t kStoresBetween = 2;

  __device__ std::byte* stage(uint32_t use) const { return stages_ + (use % kShipStages) * kShipStageBytes; }
  __device__ uint64_t* barrier(uint32_t use) const {
    return reinterpret_cast<uint64_t*>(stages_ + kShipStages * kShipStageBytes) + use % kShipStages;
  }

  __device__ void move(std::byte* to, const std::byte* from, int64_t bytes, uint64_t* counter) {
    const auto chunks = static_cast<uint32_t>(ceil_div(bytes, kShipStageBytes));
    if (chunks < kStoresBetween) flush();
    // What this warp's plain loads have acquired is there for the bulk engine, too.
    ptx::fence_proxy_async();
    const auto size = [&](uint32_t chunk) {
      return static_cast<uint32_t>(min64(kShipStageBytes, bytes - int64_t{chunk} * kShipStageBytes));
    };
    uint32_t loaded = 0;
    const auto load = [&] {
      const uint32_t use = used_ + loaded, count = size(loaded);
      ptx::expect_bytes(barrier(use), count);
      ptx::bulk_load(stage(use), from + int64_t{loaded} * kShipStageBytes, count, barrier(use));
      ++loaded;
    };
    while (loaded < chunks && loaded < kShipStages - kLeaving) load();
    for (uint32_t chunk = 0; chunk < chunks; ++chunk) {
      const uint32_t use = used_ + chunk;
      // No limit: nobody but the copy engine of this SM takes part.
      while (!ptx::barrier_passed(barrier(use), (use / kShipStages) % 2)) {
      }
      ptx::bulk_store(to + int64_t{chunk} * kShipStageBytes, stage(use), size(chunk));
      ptx::commit_bulk_stores();
      ptx::wait_for_bulk_reads<kLeaving>();
      if (loaded < chunks) load();
      if (chunk + 1 == kStoresBetween && uncounted_ > 0) {
        ptx::wait_for_bulk_stores<kStoresBetween>();
        count();
      }
    }
    used_ += chunks;
    counter_ = counter;
    stamp_ = next_stamp_;
    uncounted_ = bytes;
  }
  // Release, cumulative over the warp: its rows are there before their bytes are counted. Pairs with the owner's
  // acquire in front of its reduce.
  __device__ void count() {
    ptx::add_release_system(counter_, static_cast<uint64_t>(uncounted_));
    if (stamp_ != nullptr) *stamp_ = ptx::global_timer_ns();
    uncounted_ = 0;
  }

  std::byte* stages_;
  uint32_t used_ = 0;  // uses of stages so far; a stage's barrier changes its phase in each
  uint64_t* counter_ = nullptr;
  uint64_t* stamp_ = nullptr;
  uint64_t* next_stamp_ = nullptr;
  int64_t uncounted_ = 0;  // bytes of the last copy, until they are added to its counter
};

// By 16-byte vectors, eight in flight a thread, past L1: any GPU. Same contract.
class VectorLane {
 public:
  __device__ explicit VectorLane(std::byte*) {}
  __device__ void copy(std::byte* to, const std::byte* from, int64_t bytes, uint64_t* counter) {
    constexpr int kInFlight = 8, kLanes = 32;
    const auto* source = reinterpret_cast<const uint4*>(from);
    auto* target = reinterpret_cast<uint4*>(to);
    const int64_t vectors = bytes / static_cast<int64_t>(sizeof(uint4));
    int64_t i = threadIdx.x % kLanes;
    for (; i + (kInFlight - 1) * kLanes < vectors; i += kInFlight * kLanes) {
      uint4 values[kInFlight];
#pragma unroll
      for (int j = 0; j < kInFlight; ++j) values[j] = __ldcg(source + i + j * kLanes);
#pragma unroll
      for (int j = 0; j < kInFlight; ++j) __stcs(target + i + j * kLanes, values[j]);
    }
    for (; i < vectors; i += kLanes) __stcs(target + i, __ldcg(source + i));
    __syncwarp();
    if (threadIdx.x % kLanes == 0) ptx::add_release_system(counter, static_cast<uint64_t>(bytes));
  }
  __device__ void stamp_next(uint64_t*) {}  // counted on return
  __device__ void flush() {}
};

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
using CopyLane = VectorLane;
#else
using CopyLane = BulkLane;
#endif

}  // namespace tileoverlap
