#pragma once
// How kernels reach peers whose memory is mapped: ranks of one process, CUDA IPC, torch symmetric memory, NVSHMEM's own
// mapped pointers.
//
// A link is what the kernels of a call are templates over, so it fixes the words that every link has:
//   put, put_row, put_message   data into a peer's part
//   announce, set, add, get     one word of a peer's part; all words are given as offsets into it
//   reached                     one word of the rank's own part, which peers write
//   complete                    all puts of this rank have been carried out

#include "core/ptx.cuh"
#include "execute/device_world.hpp"
#include "transport/copy_lane.cuh"

namespace tileoverlap {

struct PeerLink {
  // Rows leave from wherever they lie. (Links that need them in this rank's part say true.)
  static constexpr bool kSourcesInPart = false;

  // By all lanes of a warp: copies `bytes`, a multiple of 16, from this rank's `source` to `offset` of the peer's part
  // and adds them to the word at `counter`. On return both may still be to come: copies.flush().
  static __device__ void put(CopyLane& copies, const DeviceWorld& world, int32_t peer, int64_t offset,
                             const std::byte* source, int64_t bytes, int64_t counter) {
    copies.copy(world.parts[peer] + offset, source, bytes, world.word_at(peer, counter));
  }

  // By all lanes of a warp: one row, counted later.
  static __device__ void put_row(const DeviceWorld& world, int32_t peer, int64_t offset, const std::byte* source,
                                 int64_t bytes) {
    const int64_t vectors = bytes / static_cast<int64_t>(sizeof(uint4));
    const auto* from = reinterpret_cast<const uint4*>(source);
    auto* to = reinterpret_cast<uint4*>(world.parts[peer] + offset);
#pragma unroll 4
    for (int64_t i = threadIdx.x % 32; i < vectors; i += 32) to[i] = from[i];
  }

  // By one thread: a few words, then `value` at `word`. Release: what the message says is there before the word.
  static __device__ void put_message(const DeviceWorld& world, int32_t peer, int64_t offset, const void* source,
                                     int64_t bytes, int64_t word, uint64_t value) {
    const auto* from = static_cast<const uint32_t*>(source);
    auto* to = reinterpret_cast<uint32_t*>(world.parts[peer] + offset);
    for (int64_t i = 0; i < bytes / static_cast<int64_t>(sizeof(uint32_t)); ++i) to[i] = from[i];
    set(world, peer, word, value);
  }

  // By lane 0 of a warp. In front of all that the warp puts or counts at this peer later.
  static __device__ void announce(const DeviceWorld& world, int32_t peer, int64_t word, uint64_t value) {
    ptx::store_relaxed_system(world.word_at(peer, word), value);
  }
  // By one thread. Release: behind all that it has seen, and behind the kernels before.
  static __device__ void set(const DeviceWorld& world, int32_t peer, int64_t word, uint64_t value) {
    ptx::store_release_system(world.word_at(peer, word), value);
  }
  static __device__ void add(const DeviceWorld& world, int32_t peer, int64_t word, uint64_t value) {
    ptx::add_release_system(world.word_at(peer, word), value);
  }
  // By one thread. Acquire.
  static __device__ uint64_t get(const DeviceWorld& world, int32_t peer, int64_t word) {
    return ptx::load_acquire_system(world.word_at(peer, word));
  }
  // By one thread. Words only grow, but for wrap-around, which 64 bits do not see. Acquire.
  static __device__ bool reached(const uint64_t* own_word, uint64_t value) {
    return ptx::load_acquire_system(own_word) >= value;
  }
  // True where the peer has memory yet.
  static __device__ bool there(const DeviceWorld& world, int32_t peer) { return world.parts[peer] != nullptr; }
  // By one thread, in front of what counts the puts of kernels before, and of what overwrites their sources.
  static __device__ void complete() {}
};

}  // namespace tileoverlap
