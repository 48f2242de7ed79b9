#pragma once
// The planner's kernel, for any link.

#include "core/cuda_objects.hpp"
#include "core/load_kernels.hpp"
#include "execute/device_watch.cuh"
#include "plan/device_group.cuh"
#include "plan/plan_call.hpp"
#include "routing/device_vote.hpp"

namespace tileoverlap {

inline constexpr int32_t kPlanThreads = 512;

template <class Link>
__device__ bool wait_for_vote(const DeviceWorld& world, const DeviceWatch<Link>& watch, int32_t peer, uint64_t epoch) {
  const VoteHead* head = world.own_vote(epoch, peer);
  // Acquire: pairs with the release behind the peer's counts or reason.
  return watch.wait(
      {.what = WaitFor::kCounts, .peer = peer}, [&] { return Link::reached(&head->epoch, epoch); },
      [&](WaitRecord& record) {
        record.seen = ptx::load_relaxed_system(&head->epoch);
        record.expected = epoch;
      });
}

// The first rank that refuses the call, or -1.
__device__ inline int32_t first_refusal(const DeviceWorld& world, uint64_t epoch) {
  for (int32_t peer = 0; peer < world.world(); ++peer) {
    if (world.own_vote(epoch, peer)->refusal_size != 0) return peer;
  }
  return -1;
}

// Each kind of news once: what the host has not fetched yet is not overwritten.
__device__ inline void report_refusal(const DeviceWorld& world, uint64_t epoch, int32_t by) {
  Status& status = *world.status;
  const VoteHead* head = world.own_vote(epoch, by);
  if (by == world.rank) {
    // A refusal by the host has been thrown where it was found.
    if (head->refusal_size != kRefusedIds || ptx::load_relaxed_system(&status.bad_ids) != 0) return;
    status.ids = *reinterpret_cast<const IdReport*>(head + 1);
    // Release, here and below: pairs with the host's acquire; what it says is there.
    ptx::store_release_system(&status.bad_ids, epoch);
    return;
  }
  if (ptx::load_relaxed_system(&status.refused) != 0) return;
  const int64_t bytes = head->refusal_size > 0 ? head->refusal_size : static_cast<int64_t>(sizeof(IdReport));
  const auto* reason = reinterpret_cast<const char*>(head + 1);
  for (int64_t i = 0; i < bytes; ++i) status.refusal[i] = reason[i];
  status.refused_by = by;
  status.refusal_size = static_cast<int32_t>(head->refusal_size);
  ptx::store_release_system(&status.refused, epoch);
}

template <class Link>
__global__ void __launch_bounds__(kPlanThreads, 1) plan_call_kernel(const PlanCallTask task) {
  const DeviceWatch<Link> watch(task.world);
  if (!watch.running()) return;
  const DeviceWorld& world = task.world;
  const uint64_t epoch = world.control->epoch;
  bool there = true;
  for (int32_t peer = static_cast<int32_t>(threadIdx.x); there && peer < world.world(); peer += kPlanThreads) {
    there = wait_for_vote(world, watch, peer, epoch);
  }
  if (__syncthreads_and(there) == 0) return;
  PlannerInput input = task.input;
  input.refused_by = first_refusal(world, epoch);
  if (input.refused_by >= 0 && threadIdx.x == 0) report_refusal(world, epoch, input.refused_by);
  input.counts = reinterpret_cast<const int32_t*>(world.own_vote(epoch, 0) + 1);
  input.counts_stride = world.layout.vote_stride / static_cast<int64_t>(sizeof(int32_t));
  DeviceGroup group;
  const PlannerResult result = plan_call(group, input, task.scratch_layout.at(task.scratch), task.plan);
  // Ranks check their tokens against max_tokens before they vote, so counts cannot pass the capacity.
  if (result.too_large && threadIdx.x == 0) watch.fail({.what = WaitFor::kError, .peer = world.rank});
}

template <class Link>
void load_plan_call() {
  load_kernels({reinterpret_cast<const void*>(&plan_call_kernel<Link>)}, "loading the planner");
}

template <class Link>
void launch_plan_call(const PlanCallTask& task, cudaStream_t stream) {
  plan_call_kernel<Link><<<1, kPlanThreads, 0, stream>>>(task);
  cuda_check(cudaGetLastError(), "launching the planner");
}

}  // namespace tileoverlap
