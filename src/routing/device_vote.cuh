#pragma once
// The kernels of the vote, for any link.

#include <algorithm>
#include <cstring>

#include "core/cuda_objects.hpp"
#include "core/load_kernels.hpp"
#include "execute/device_watch.cuh"
#include "routing/device_vote.hpp"

namespace tileoverlap {

inline constexpr int32_t kVoteThreads = 256;

struct Reason {
  char text[Status::kLongestRefusal];
  int64_t size;
};

// By all threads of a CTA: writes this rank's vote into a part that is mapped, and publishes it.
__device__ inline void write_vote(const DeviceWorld& world, int32_t peer, const void* body, int64_t bytes,
                                  int64_t refusal_size) {
  const uint64_t epoch = world.control->epoch;
  auto* head = reinterpret_cast<VoteHead*>(world.parts[peer] + world.layout.vote_offset(epoch, world.rank));
  const auto* from = static_cast<const char*>(body);
  auto* to = reinterpret_cast<char*>(head + 1);
  for (int64_t i = threadIdx.x; i < bytes; i += kVoteThreads) to[i] = from[i];
  __syncthreads();
  if (threadIdx.x != 0) return;
  head->refusal_size = refusal_size;
  // Release: pairs with the acquire in front of the peer's planner.
  ptx::store_release_system(&head->epoch, epoch);
}

// One CTA a peer; or one for all, where messages leave from this rank's part: it writes the vote there first.
template <class Link>
__device__ void cast(const DeviceWorld& world, const void* body, int64_t bytes, int64_t refusal_size) {
  if constexpr (!Link::kSourcesInPart) {
    write_vote(world, static_cast<int32_t>(blockIdx.x), body, bytes, refusal_size);
  } else {
    write_vote(world, world.rank, body, bytes, refusal_size);
    if (threadIdx.x != 0) return;
    constexpr auto kWord = static_cast<int64_t>(sizeof(uint64_t));
    const int64_t word = world.layout.vote_offset(world.control->epoch, world.rank);
    for (int32_t peer = 0; peer < world.world(); ++peer) {
      if (peer == world.rank) continue;
      Link::put_message(world, peer, word + kWord, world.own() + word + kWord, kWord + align_up(bytes, kWord), word,
                        world.control->epoch);
    }
  }
}

template <class Link>
uint32_t vote_ctas(const DeviceWorld& world) {
  return Link::kSourcesInPart ? 1 : static_cast<uint32_t>(world.world());
}

template <class Link>
__global__ void cast_counts_kernel(const CountsVote vote) {
  if (!is_running(vote.world)) return;
  if (vote.ids->copy >= 0) {
    cast<Link>(vote.world, vote.ids, sizeof(IdReport), kRefusedIds);
  } else {
    cast<Link>(vote.world, vote.counts, vote.experts * static_cast<int64_t>(sizeof(int32_t)), 0);
  }
}

template <class Link>
__global__ void cast_refusal_kernel(const DeviceWorld world, const Reason reason) {
  if (!is_running(world)) return;
  cast<Link>(world, reason.text, reason.size, reason.size);
}

template <class Link>
void load_device_vote() {
  load_kernels({reinterpret_cast<const void*>(&cast_counts_kernel<Link>),
                reinterpret_cast<const void*>(&cast_refusal_kernel<Link>)},
               "loading the vote");
}

template <class Link>
void cast_counts(const CountsVote& vote, cudaStream_t stream) {
  cast_counts_kernel<Link><<<vote_ctas<Link>(vote.world), kVoteThreads, 0, stream>>>(vote);
  cuda_check(cudaGetLastError(), "launching the vote");
}

// `text` is cut to Status::kLongestRefusal bytes.
template <class Link>
void cast_refusal(const DeviceWorld& world, std::string_view text, cudaStream_t stream) {
  Reason reason{};
  reason.size = std::min<int64_t>(static_cast<int64_t>(text.size()), Status::kLongestRefusal);
  std::memcpy(reason.text, text.data(), static_cast<size_t>(reason.size));
  cast_refusal_kernel<Link><<<vote_ctas<Link>(world), kVoteThreads, 0, stream>>>(world, reason);
  cuda_check(cudaGetLastError(), "launching the refusal");
}

}  // namespace tileoverlap
