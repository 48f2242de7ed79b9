#include "routing/device_vote.hpp"

#include <algorithm>
#include <cstring>

#include "core/cuda_objects.hpp"
#include "execute/device_watch.cuh"

namespace tileoverlap {
namespace {

constexpr int kThreads = 256;

struct Reason {
  char text[Status::kLongestRefusal];
  int64_t size;
};

// Copies to what follows the head of this rank's vote at `peer`, then publishes it.
__device__ void cast(const DeviceWorld& world, int32_t peer, const void* body, int64_t bytes, int64_t refusal_size) {
  const uint64_t epoch = world.control->epoch;
  VoteHead* head = world.vote(peer, epoch, world.rank);
  const auto* from = static_cast<const char*>(body);
  auto* to = reinterpret_cast<char*>(head + 1);
  for (int64_t i = threadIdx.x; i < bytes; i += kThreads) to[i] = from[i];
  __syncthreads();
  if (threadIdx.x != 0) return;
  head->refusal_size = refusal_size;
  // Release: pairs with the acquire in front of the peer's planner.
  ptx::store_release_system(&head->epoch, epoch);
}

// One CTA a peer.
__global__ void cast_counts_kernel(const CountsVote vote) {
  if (!DeviceWatch(vote.world).running()) return;
  const auto peer = static_cast<int32_t>(blockIdx.x);
  if (vote.ids->copy >= 0) {
    cast(vote.world, peer, vote.ids, sizeof(IdReport), kRefusedIds);
  } else {
    cast(vote.world, peer, vote.counts, vote.experts * static_cast<int64_t>(sizeof(int32_t)), 0);
  }
}

__global__ void cast_refusal_kernel(const DeviceWorld world, const Reason reason) {
  if (!DeviceWatch(world).running()) return;
  cast(world, static_cast<int32_t>(blockIdx.x), reason.text, reason.size, reason.size);
}

}  // namespace

void load_device_vote() {
  cudaFuncAttributes attributes;
  for (const void* kernel :
       {reinterpret_cast<const void*>(&cast_counts_kernel), reinterpret_cast<const void*>(&cast_refusal_kernel)}) {
    cuda_check(cudaFuncGetAttributes(&attributes, kernel), "loading the vote");
  }
}

void cast_counts(const CountsVote& vote, cudaStream_t stream) {
  cast_counts_kernel<<<static_cast<uint32_t>(vote.world.world()), kThreads, 0, stream>>>(vote);
  cuda_check(cudaGetLastError(), "launching the vote");
}

void cast_refusal(const DeviceWorld& world, std::string_view text, cudaStream_t stream) {
  Reason reason{};
  reason.size = std::min<int64_t>(static_cast<int64_t>(text.size()), Status::kLongestRefusal);
  std::memcpy(reason.text, text.data(), static_cast<size_t>(reason.size));
  cast_refusal_kernel<<<static_cast<uint32_t>(world.world()), kThreads, 0, stream>>>(world, reason);
  cuda_check(cudaGetLastError(), "launching the refusal");
}

}  // namespace tileoverlap
