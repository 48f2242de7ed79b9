#pragma once
// The consumer's kernel, for any link.

#include "consume/ship_lanes.hpp"
#include "consume/ship_rows.hpp"
#include "core/cuda_objects.hpp"
#include "core/load_kernels.hpp"
#include "execute/device_watch.cuh"
#include "transport/copy_lane.cuh"

namespace tileoverlap {

__device__ inline uint64_t mixed(uint64_t value) {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
  return value ^ (value >> 31);
}

// The piece that ticket `ticket` stands for: the schedule's order, or with disorder a rotation of it, turned round in
// every other call.
__device__ inline int64_t piece_of(const ShipTask& task, int64_t ticket, int64_t pieces, uint64_t epoch) {
  if (task.disorder.seed == 0) return ticket;
  const uint64_t draw = mixed(task.disorder.seed + epoch);
  const int64_t rotated = static_cast<int64_t>((static_cast<uint64_t>(ticket) + draw) % static_cast<uint64_t>(pieces));
  return (draw >> 63) != 0 ? pieces - 1 - rotated : rotated;
}

__device__ inline void delay(const ShipTask& task, uint64_t draw) {
  if (task.disorder.max_delay_us == 0) return;
  const uint64_t wait_ns = mixed(draw) % (static_cast<uint64_t>(task.disorder.max_delay_us) * 1000 + 1);
  const uint64_t begin = ptx::global_timer_ns();
  while (ptx::global_timer_ns() - begin < wait_ns) ptx::sleep_ns(100);
}

// One warp waits until every tile of the piece's bands carries this epoch's flag.
template <class Link>
__device__ bool wait_for_bands(const ShipTask& task, const DeviceWatch<Link>& watch, CopyLane& copies,
                               const Piece& piece, uint64_t epoch) {
  if (task.flags == nullptr) return true;
  const int64_t first = static_cast<int64_t>(piece.first_band) * task.tiles_n;
  const int64_t end = (static_cast<int64_t>(piece.last_band) + 1) * task.tiles_n;
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  for (int64_t group = first; group < end; group += 32) {
    const int64_t tile = group + lane;
    const auto published = [&] { return tile >= end || ptx::load_relaxed_gpu(task.flags + tile) == epoch; };
    if (__all_sync(~0u, published())) continue;
    copies.flush();
    typename DeviceWatch<Link>::Deadline deadline(watch, task.world.rank);
    uint32_t missing = 0;  // lanes whose tile is not there
    while ((missing = ~__ballot_sync(~0u, published())) != 0) {
      if (!__any_sync(~0u, deadline.pause())) continue;
      bool stopped = false, passed = false;
      if (lane == 0) {
        stopped = watch.stopped();
        passed = deadline.passed();
      }
      bool failed = stopped;
      // The first tile that is missing speaks for all; one that has come meanwhile makes another look necessary.
      if (__any_sync(~0u, passed) && lane == __ffs(static_cast<int32_t>(missing)) - 1 && !published()) {
        failed = true;
        watch.fail({.what = WaitFor::kBand,
                    .peer = task.world.rank,
                    .expert = piece.expert,
                    .band = static_cast<int32_t>(tile / task.tiles_n),
                    .tile = static_cast<int32_t>(tile % task.tiles_n),
                    .segment = piece.segment,
                    .seen = ptx::load_relaxed_gpu(task.flags + tile),
                    .expected = epoch});
      }
      if (__any_sync(~0u, failed)) return false;
    }
  }
  // Acquire: pairs with the producer's release of each flag; the rows can be read. By all lanes, since each has seen
  // other flags: the barrier makes what they have seen known to the one that copies (votes and shuffles order no
  // memory).
  ptx::fence_acquire_gpu();
  __syncwarp();
  return true;
}

// The owner has read what the call before put into its staging.
template <class Link>
__device__ bool wait_for_credit(const ShipTask& task, const DeviceWatch<Link>& watch, CopyLane& copies,
                                const Piece& piece, uint64_t epoch) {
  copies.flush();
  const uint64_t* credit = task.world.own_word(Word::kCredit, piece.peer);
  // Acquire: pairs with the owner's release behind its reduce; its staging can be overwritten.
  const auto granted = [&] { return Link::reached(credit, epoch - 1); };
  return watch.wait({.what = WaitFor::kCredit, .peer = piece.peer, .expert = piece.expert, .segment = piece.segment},
                    granted, [&](WaitRecord& record) {
                      record.seen = ptx::load_relaxed_system(credit);
                      record.expected = epoch - 1;
                    });
}

// Peers that one lane has greeted in this call. A peer of a higher number is greeted again and again, which is slower
// and as right.
class Greeted {
 public:
  // True where the peer has to be greeted.
  __device__ bool add(int32_t peer) {
    if (peer >= 64) return true;
    const uint64_t bit = uint64_t{1} << peer;
    const bool first = (peers_ & bit) == 0;
    peers_ |= bit;
    return first;
  }

 private:
  uint64_t peers_ = 0;
};

template <class Link>
__global__ void __launch_bounds__(32 * kVectorLanes, 1) ship_rows_kernel(const ShipTask task) {
  extern __shared__ __align__(128) std::byte shared[];
  const DeviceWatch<Link> watch(task.world);
  const uint64_t epoch = task.world.control->epoch;
  const int64_t pieces = task.plan.head->pieces;
  if (!watch.running()) return;
  const uint32_t lane = threadIdx.x / 32;
  const bool speaks = threadIdx.x % 32 == 0;
  CopyLane copies(shared + lane * kShipLaneBytes);
  Greeted greeted;
  const auto draw_ticket = [&] {
    return speaks ? static_cast<long long>(
                        atomicAdd(reinterpret_cast<unsigned long long*>(&task.world.control->next_piece), 1ull))
                  : 0;
  };
  long long drawn = draw_ticket();
  while (true) {
    const long long ticket = __shfl_sync(~0u, drawn, 0);
    if (ticket >= pieces) break;
    const int64_t number = piece_of(task, ticket, pieces, epoch);
    const Piece piece = task.plan.pieces[number];
    PieceStamp stamp = {};
    stamp.wait_begin_ns = ptx::global_timer_ns();
    bool ready = wait_for_bands(task, watch, copies, piece, epoch);
    stamp.wait_end_ns = ptx::global_timer_ns();
    if (speaks) {
      if (ready && greeted.add(piece.peer)) {
        ready = wait_for_credit(task, watch, copies, piece, epoch);
        // Read by the owner behind the arrivals of this lane, each of which releases it.
        if (ready) {
          Link::announce(task.world, piece.peer, task.world.layout.word_offset(Word::kPlan, task.world.rank),
                         task.plan.head->fingerprint);
        }
      }
      if (ready) delay(task, epoch * 1'000'003u + static_cast<uint64_t>(number));
      stamp.copy_begin_ns = ptx::global_timer_ns();
    }
    if (__shfl_sync(~0u, ready ? 1 : 0, 0) == 0) {
      copies.flush();  // stores read this CTA's shared memory
      return;          // without complete(), which may wait for a peer that is gone
    }
    drawn = draw_ticket();  // on its way while the piece is copied
    copies.stamp_next(task.stamps != nullptr ? &task.stamps[number].copy_end_ns : nullptr);
    Link::put(copies, task.world, piece.peer, task.world.layout.staging + piece.remote_row * task.row_bytes,
              task.output + piece.row_begin * task.row_bytes, piece.row_count * task.row_bytes,
              task.world.layout.word_offset(Word::kReturned, task.world.rank));
    if (task.stamps != nullptr && speaks) {
      stamp.copy_end_ns = ptx::global_timer_ns();  // until the lane counts the piece and stores when that was
      stamp.lane = blockIdx.x * (blockDim.x / 32) + lane;
      task.stamps[number] = stamp;
    }
  }
  copies.flush();
  // What comes behind this kernel may overwrite the rows.
  if (speaks) Link::complete();
}

// Of the current device.
inline bool has_bulk_engine() {
  int device = 0;
  cuda_check(cudaGetDevice(&device), "cudaGetDevice");
  return has_bulk_engine(device);
}

template <class Link>
void load_ship_rows() {
  const auto* kernel = reinterpret_cast<const void*>(&ship_rows_kernel<Link>);
  constexpr const char* kWhat = "loading the consumer";
  load_kernels({kernel}, kWhat);
  if (!has_bulk_engine()) return;
  cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBulkLanes * kShipLaneBytes),
             kWhat);
}

template <class Link>
void ship_rows(const ShipTask& task, int32_t sms, cudaStream_t stream) {
  const bool bulk = has_bulk_engine();
  const auto threads = static_cast<uint32_t>(32 * (bulk ? kBulkLanes : kVectorLanes));
  const auto shared = static_cast<size_t>(bulk ? kBulkLanes * kShipLaneBytes : 0);
  ship_rows_kernel<Link><<<static_cast<uint32_t>(sms), threads, shared, stream>>>(task);
  cuda_check(cudaGetLastError(), "launching the consumer");
}

}  // namespace tileoverlap
