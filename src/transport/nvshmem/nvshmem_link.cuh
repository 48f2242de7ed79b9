#pragma once
// How kernels reach peers that NVSHMEM does not map: puts and signals by way of the network. Peers that are mapped take
// PeerLink's way, so that one call may have both. See peer_link.cuh for what each word means.
//
// Relocatable device code, in NVSHMEM's plugin only. The words are functions of their own, not inlined: NVSHMEM's
// headers put the network's whole protocol into each place that uses them, which costs minutes of compiling.

#include "transport/peer_link.cuh"

namespace tileoverlap {

struct NvshmemLink {
  // The network reads what it sends from symmetric memory.
  static constexpr bool kSourcesInPart = true;

  static __device__ void put(CopyLane& copies, const DeviceWorld& world, int32_t peer, int64_t offset,
                             const std::byte* source, int64_t bytes, int64_t counter);
  static __device__ void put_row(const DeviceWorld& world, int32_t peer, int64_t offset, const std::byte* source,
                                 int64_t bytes);
  static __device__ void put_message(const DeviceWorld& world, int32_t peer, int64_t offset, const void* source,
                                     int64_t bytes, int64_t word, uint64_t value);
  static __device__ void announce(const DeviceWorld& world, int32_t peer, int64_t word, uint64_t value);
  static __device__ void set(const DeviceWorld& world, int32_t peer, int64_t word, uint64_t value);
  static __device__ void add(const DeviceWorld& world, int32_t peer, int64_t word, uint64_t value);
  static __device__ uint64_t get(const DeviceWorld& world, int32_t peer, int64_t word);
  static __device__ bool reached(const uint64_t* own_word, uint64_t value);
  // allocate() has returned on all ranks.
  static __device__ bool there(const DeviceWorld&, int32_t) { return true; }
  static __device__ void complete();
};

}  // namespace tileoverlap
