#pragma once
// The device transport for peers whose memory is mapped: ranks of one process, CUDA IPC, torch symmetric memory,
// NVSHMEM's own mapped pointers. A transport has two calls: put with arrival, by all threads of a CTA.

#include "core/ptx.cuh"
#include "execute/device_world.hpp"

namespace tileoverlap {

struct PeerTransport {
  // Copies `bytes`, a multiple of 16, from this rank's `source` to `offset` of the peer's part and adds them to `word`
  // there. On return the copy may still be on its way.
  static __device__ void put(const DeviceWorld& world, int32_t peer, int64_t offset, const std::byte* source,
                             int64_t bytes, Word word) {
    copy(world.parts[peer] + offset, source, bytes);
    __syncthreads();
    // Release, cumulative over the barrier: all threads' rows are there before their bytes are counted. Pairs with the
    // owner's acquire in front of its reduce.
    if (threadIdx.x == 0) ptx::add_release_system(world.word(peer, word, world.rank), static_cast<uint64_t>(bytes));
  }

  // 16-byte vectors, four in flight a thread, past L1: rows are read once and never read back here. Measured on an
  // H200: 48 GB/s a CTA of 1024 threads, and as much by the bulk copy engine, which needs shared memory besides.
  static __device__ void copy(std::byte* to, const std::byte* from, int64_t bytes) {
    constexpr int kInFlight = 4;
    const auto* source = reinterpret_cast<const uint4*>(from);
    auto* target = reinterpret_cast<uint4*>(to);
    const int64_t vectors = bytes / static_cast<int64_t>(sizeof(uint4)), step = blockDim.x;
    int64_t i = threadIdx.x;
    for (; i + (kInFlight - 1) * step < vectors; i += kInFlight * step) {
      uint4 values[kInFlight];
#pragma unroll
      for (int j = 0; j < kInFlight; ++j) values[j] = __ldcg(source + i + j * step);
#pragma unroll
      for (int j = 0; j < kInFlight; ++j) __stcs(target + i + j * step, values[j]);
    }
    for (; i < vectors; i += step) __stcs(target + i, __ldcg(source + i));
  }
};

}  // namespace tileoverlap
