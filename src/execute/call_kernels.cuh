#pragma once
// The small kernels around a call, for any link.

#include "core/cuda_objects.hpp"
#include "core/load_kernels.hpp"
#include "execute/call_kernels.hpp"
#include "execute/device_watch.cuh"

namespace tileoverlap {

inline constexpr int32_t kCallThreads = 128;

// The second word behind `ready`: the hash of the terms.
TILEOVERLAP_HD constexpr int64_t terms_offset(const WorkspaceLayout& layout) {
  return layout.ready + static_cast<int64_t>(sizeof(uint64_t));
}

template <class Link>
__global__ void open_session_kernel(const DeviceWorld world, uint64_t first_epoch) {
  if (threadIdx.x == 0) world.control->epoch = first_epoch;
  for (int32_t peer = static_cast<int32_t>(threadIdx.x); peer < world.world(); peer += kCallThreads) {
    *world.own_word(Word::kCredit, peer) = first_epoch;
    *world.own_word(Word::kDispatchCredit, peer) = first_epoch;
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  ptx::store_relaxed_system(world.own_word_at(terms_offset(world.layout)), world.terms);
  // Release: the part is initialised before peers write into it. Pairs with the acquire in meet().
  ptx::store_release_system(world.own_word_at(world.layout.ready), RankState::kReady);
}

template <class Link>
__global__ void close_session_kernel(const DeviceWorld world) {
  if (threadIdx.x == 0 && is_running(world)) {
    ptx::store_release_system(world.own_word_at(world.layout.ready), RankState::kClosed);
  }
  if (threadIdx.x == 0) Link::complete();
  __syncthreads();
  for (int32_t peer = static_cast<int32_t>(threadIdx.x); peer < world.world(); peer += kCallThreads) {
    // The last word of this rank: release, everything it has done is visible with it.
    if (peer != world.rank && Link::there(world, peer)) {
      Link::set(world, peer, world.layout.word_offset(Word::kClosed, world.rank), 1);
    }
  }
}

// True if the peer is there, prepared as we are, and can be used.
template <class Link>
__device__ bool meet(const DeviceWorld& world, const DeviceWatch<Link>& watch, int32_t peer) {
  // Acquire: pairs with the release in open_session_kernel.
  const auto state_of_peer = [&] { return Link::get(world, peer, world.layout.ready); };
  const auto prepared = [&] { return state_of_peer() != RankState::kNotReady; };
  if (!watch.wait({.what = WaitFor::kMemory, .peer = peer}, prepared, [](WaitRecord&) {})) return false;
  const uint64_t state = state_of_peer();
  if (state == RankState::kFailed) {
    // It failed before this rank was there to be told.
    watch.fail({.what = WaitFor::kPeerClosed, .peer = peer});
    return false;
  }
  // Its last call may not have needed us, and ours may not need it: only a wait can tell.
  if (state == RankState::kClosed) ptx::store_release_system(world.own_word(Word::kClosed, peer), 1);
  const uint64_t terms = Link::get(world, peer, terms_offset(world.layout));
  if (terms != world.terms) {
    watch.fail({.what = WaitFor::kSameTerms, .peer = peer, .seen = terms, .expected = world.terms});
    return false;
  }
  return true;
}

template <class Link>
__global__ void begin_call_kernel(const DeviceWorld world, CallStamps* stamps) {
  __shared__ bool first;
  const DeviceWatch<Link> watch(world);
  if (!watch.running()) return;
  if (threadIdx.x == 0) {
    world.control->epoch += 1;
    world.control->next_piece = 0;
    first = world.control->connected == 0;
    if (stamps != nullptr) stamps->begin_ns = ptx::global_timer_ns();
  }
  __syncthreads();
  if (!first) return;
  bool met = true;
  for (int32_t peer = static_cast<int32_t>(threadIdx.x); met && peer < world.world(); peer += kCallThreads) {
    met = meet(world, watch, peer);
  }
  if (__syncthreads_and(met) != 0 && threadIdx.x == 0) world.control->connected = 1;
}

// The peer has read what the call before put into its input rows, or with kCredit into its staging.
template <class Link>
__device__ bool await_credit(const AwaitTask& task, const DeviceWatch<Link>& watch, int32_t peer) {
  const Word word = task.what == WaitFor::kCredit ? Word::kCredit : Word::kDispatchCredit;
  const uint64_t* credit = task.world.own_word(word, peer);
  const uint64_t before = task.world.control->epoch - 1;
  // Acquire: pairs with the release in finish_call_kernel, behind the kernels that read the rows.
  return watch.wait(
      {.what = task.what, .peer = peer}, [&] { return Link::reached(credit, before); },
      [&](WaitRecord& record) {
        record.seen = ptx::load_relaxed_system(credit);
        record.expected = before;
      });
}

// Peers may be written to, and will know by which plan.
template <class Link>
__device__ bool await_return_credit(const AwaitTask& task, const DeviceWatch<Link>& watch, int32_t peer) {
  if (task.rows[peer] == 0) return true;
  if (!await_credit(task, watch, peer)) return false;
  const int64_t word = task.world.layout.word_offset(Word::kPlan, task.world.rank);
  Link::announce(task.world, peer, word, task.plan->fingerprint);
  return true;
}

template <class Link>
__device__ bool await_arrival(const AwaitTask& task, const DeviceWatch<Link>& watch, int32_t peer) {
  const int64_t rows = task.rows[peer];
  if (rows == 0) return true;
  const uint64_t before = task.totals[peer];
  const uint64_t expected = before + static_cast<uint64_t>(rows * task.row_bytes);
  task.totals[peer] = expected;
  const Word word = task.what == WaitFor::kArrival ? Word::kReturned : Word::kDispatched;
  const uint64_t* arrived = task.world.own_word(word, peer);
  // Acquire: pairs with the peer's release that counted the bytes; the rows can be read, also by the kernels behind.
  if (!watch.wait(
          {.what = task.what, .peer = peer}, [&] { return Link::reached(arrived, expected); },
          [&](WaitRecord& record) {
            record.seen = ptx::load_relaxed_system(arrived) - before;
            record.expected = expected - before;
          })) {
    return false;
  }
  if (task.what != WaitFor::kArrival) return true;
  // Ordered by that acquire. The peer sends nothing of its next call before it has our credit, so the word is of this
  // call.
  const uint64_t theirs = ptx::load_relaxed_system(task.world.own_word(Word::kPlan, peer));
  if (theirs == task.plan->fingerprint) return true;
  watch.fail({.what = WaitFor::kSamePlan, .peer = peer, .seen = theirs, .expected = task.plan->fingerprint});
  return false;
}

template <class Link>
__global__ void count_sent_kernel(const DeviceWorld world, Word word, const int64_t* rows, int64_t row_bytes) {
  if (!is_running(world)) return;
  if (threadIdx.x == 0) Link::complete();
  __syncthreads();
  for (int32_t peer = static_cast<int32_t>(threadIdx.x); peer < world.world(); peer += kCallThreads) {
    if (peer == world.rank || rows[peer] == 0) continue;
    // Release: the kernel before has written the rows. Pairs with the peer's acquire in await_arrival().
    Link::add(world, peer, world.layout.word_offset(word, world.rank), static_cast<uint64_t>(rows[peer] * row_bytes));
  }
}

template <class Link>
__global__ void await_peers_kernel(const AwaitTask task) {
  const DeviceWatch<Link> watch(task.world);
  const bool running = watch.running();
  const auto leave_nothing_to_compute = [&] {
    if (task.what == WaitFor::kCredit && threadIdx.x == 0) task.plan->bands = 0;
  };
  if (__syncthreads_and(running) == 0) return leave_nothing_to_compute();
  const DeviceWorld& world = task.world;
  if (threadIdx.x == 0 && task.stamps != nullptr) task.stamps->arrival_wait_begin_ns = ptx::global_timer_ns();
  bool there = true;
  for (int32_t peer = static_cast<int32_t>(threadIdx.x); there && peer < world.world(); peer += kCallThreads) {
    if (peer == world.rank) continue;
    switch (task.what) {
      case WaitFor::kDispatchCredit:
        there = await_credit(task, watch, peer);
        break;
      case WaitFor::kCredit:
        there = await_return_credit(task, watch, peer);
        break;
      default:
        there = await_arrival(task, watch, peer);
    }
  }
  if (__syncthreads_and(there) == 0) leave_nothing_to_compute();
  if (threadIdx.x == 0 && task.stamps != nullptr) task.stamps->arrival_wait_end_ns = ptx::global_timer_ns();
}

// What the host has not fetched yet is not overwritten.
__device__ inline void report_ids(const DeviceWorld& world, const IdReport& ids) {
  Status& status = *world.status;
  if ((ids.copy < 0 && ids.expert < 0) || ptx::load_relaxed_system(&status.bad_ids) != 0) return;
  status.ids = ids;
  // Release: pairs with the host's acquire; the report is there.
  ptx::store_release_system(&status.bad_ids, world.control->epoch);
}

template <class Link>
__global__ void finish_call_kernel(const FinishTask task) {
  const DeviceWorld& world = task.world;
  const DeviceWatch<Link> watch(world);
  // Reads what peers may have told while nobody was waiting.
  if (__syncthreads_or(threadIdx.x == 0 && watch.stopped()) != 0) return;
  const uint64_t epoch = world.control->epoch;
  if (threadIdx.x == 0 && task.ids != nullptr) report_ids(world, *task.ids);
  if (threadIdx.x == 0 && task.stamps != nullptr) task.stamps->end_ns = ptx::global_timer_ns();
  for (int32_t peer = static_cast<int32_t>(threadIdx.x); peer < world.world(); peer += kCallThreads) {
    if (peer == world.rank) continue;
    // Release: the kernels before have read the rows. Pairs with the acquires in front of the peer's next puts.
    Link::set(world, peer, world.layout.word_offset(Word::kCredit, world.rank), epoch);
    if (task.dispatched) Link::set(world, peer, world.layout.word_offset(Word::kDispatchCredit, world.rank), epoch);
  }
}

template <class Link>
void load_call_kernels() {
  load_kernels({reinterpret_cast<const void*>(&open_session_kernel<Link>),
                reinterpret_cast<const void*>(&close_session_kernel<Link>),
                reinterpret_cast<const void*>(&begin_call_kernel<Link>),
                reinterpret_cast<const void*>(&await_peers_kernel<Link>),
                reinterpret_cast<const void*>(&count_sent_kernel<Link>),
                reinterpret_cast<const void*>(&finish_call_kernel<Link>)},
               "loading the kernels of a call");
}

template <class Link>
void open_session(const DeviceWorld& world, uint64_t first_epoch, cudaStream_t stream) {
  open_session_kernel<Link><<<1, kCallThreads, 0, stream>>>(world, first_epoch);
  cuda_check(cudaGetLastError(), "launching open_session");
}

template <class Link>
void close_session(const DeviceWorld& world, cudaStream_t stream) {
  close_session_kernel<Link><<<1, kCallThreads, 0, stream>>>(world);
  cuda_check(cudaGetLastError(), "launching close_session");
}

template <class Link>
void begin_call(const DeviceWorld& world, CallStamps* stamps, cudaStream_t stream) {
  begin_call_kernel<Link><<<1, kCallThreads, 0, stream>>>(world, stamps);
  cuda_check(cudaGetLastError(), "launching begin_call");
}

template <class Link>
void count_sent(const DeviceWorld& world, Word word, const int64_t* rows, int64_t row_bytes, cudaStream_t stream) {
  count_sent_kernel<Link><<<1, kCallThreads, 0, stream>>>(world, word, rows, row_bytes);
  cuda_check(cudaGetLastError(), "launching count_sent");
}

template <class Link>
void await_peers(const AwaitTask& task, cudaStream_t stream) {
  await_peers_kernel<Link><<<1, kCallThreads, 0, stream>>>(task);
  cuda_check(cudaGetLastError(), "launching await_peers");
}

template <class Link>
void finish_call(const FinishTask& task, cudaStream_t stream) {
  finish_call_kernel<Link><<<1, kCallThreads, 0, stream>>>(task);
  cuda_check(cudaGetLastError(), "launching finish_call");
}

}  // namespace tileoverlap
