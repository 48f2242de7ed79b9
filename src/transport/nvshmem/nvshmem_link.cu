#include "transport/nvshmem/nvshmem_link.cuh"

#include <nvshmem.h>
#include <nvshmemx.h>

namespace tileoverlap {
namespace {

__device__ bool is_mapped(const DeviceWorld& world, int32_t peer) { return world.parts[peer] != nullptr; }

__device__ void signal(const DeviceWorld& world, int32_t peer, int64_t word, uint64_t value, int operation) {
  // Release, for peers that NVSHMEM reaches by pointer where the session does not: a signal alone is none.
  __threadfence_system();
  nvshmemx_signal_op(world.own_word_at(word), value, operation, world.pes[peer]);
}

}  // namespace

__device__ void NvshmemLink::put(CopyLane& copies, const DeviceWorld& world, int32_t peer, int64_t offset,
                                 const std::byte* source, int64_t bytes, int64_t counter) {
  if (is_mapped(world, peer)) return PeerLink::put(copies, world, peer, offset, source, bytes, counter);
  // The bytes are counted once all have arrived: NVSHMEM's order of a put and its signal.
  nvshmemx_putmem_signal_nbi_warp(world.own() + offset, source, static_cast<size_t>(bytes), world.own_word_at(counter),
                                  static_cast<uint64_t>(bytes), NVSHMEM_SIGNAL_ADD, world.pes[peer]);
}

__device__ void NvshmemLink::put_row(const DeviceWorld& world, int32_t peer, int64_t offset, const std::byte* source,
                                     int64_t bytes) {
  if (is_mapped(world, peer)) return PeerLink::put_row(world, peer, offset, source, bytes);
  nvshmemx_putmem_nbi_warp(world.own() + offset, source, static_cast<size_t>(bytes), world.pes[peer]);
}

__device__ void NvshmemLink::put_message(const DeviceWorld& world, int32_t peer, int64_t offset, const void* source,
                                         int64_t bytes, int64_t word, uint64_t value) {
  if (is_mapped(world, peer)) return PeerLink::put_message(world, peer, offset, source, bytes, word, value);
  nvshmem_putmem_signal_nbi(world.own() + offset, const_cast<void*>(source), static_cast<size_t>(bytes),
                            world.own_word_at(word), value, NVSHMEM_SIGNAL_SET, world.pes[peer]);
}

__device__ void NvshmemLink::announce(const DeviceWorld& world, int32_t peer, int64_t word, uint64_t value) {
  if (is_mapped(world, peer)) return PeerLink::announce(world, peer, word, value);
  nvshmem_uint64_p(world.own_word_at(word), value, world.pes[peer]);
  nvshmem_fence();
}

__device__ void NvshmemLink::set(const DeviceWorld& world, int32_t peer, int64_t word, uint64_t value) {
  if (is_mapped(world, peer)) return PeerLink::set(world, peer, word, value);
  signal(world, peer, word, value, NVSHMEM_SIGNAL_SET);
}

__device__ void NvshmemLink::add(const DeviceWorld& world, int32_t peer, int64_t word, uint64_t value) {
  if (is_mapped(world, peer)) return PeerLink::add(world, peer, word, value);
  signal(world, peer, word, value, NVSHMEM_SIGNAL_ADD);
}

__device__ uint64_t NvshmemLink::get(const DeviceWorld& world, int32_t peer, int64_t word) {
  if (is_mapped(world, peer)) return PeerLink::get(world, peer, word);
  const uint64_t value = nvshmem_uint64_g(world.own_word_at(word), world.pes[peer]);
  ptx::fence_acquire_system();
  return value;
}

__device__ bool NvshmemLink::reached(const uint64_t* own_word, uint64_t value) {
  if (!PeerLink::reached(own_word, value)) return false;
  // What the network had written before the word can be read, too: a load alone does not say so.
  return nvshmem_uint64_test(const_cast<uint64_t*>(own_word), NVSHMEM_CMP_GE, value) != 0;
}

__device__ void NvshmemLink::complete() { nvshmem_quiet(); }

}  // namespace tileoverlap
