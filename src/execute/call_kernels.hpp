#pragma once
// The small kernels around a call: its head, its end, and the waits for peers between its stages. One CTA each, so that
// waiting never fills the GPU.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "execute/device_world.hpp"
#include "plan/device_plan.hpp"

namespace tileoverlap {

// Times of a call's stages: global timer, ns.
struct CallStamps {
  uint64_t begin_ns, arrival_wait_begin_ns, arrival_wait_end_ns, end_ns;
};

// What a rank waits for between two stages.
struct AwaitTask {
  DeviceWorld world;
  WaitFor what;          // kDispatchCredit, kDispatchArrival or kArrival
  const int64_t* rows;   // [world], in device memory: rows of this call by peer (arrivals only)
  int64_t row_bytes;     // of an arriving row
  uint64_t* totals;      // [world], in device memory: bytes by peer of all calls, this one added (arrivals only)
  const PlanHead* plan;  // kArrival: its fingerprint is compared with the peers'
  CallStamps* stamps;    // null: not recorded
};

void load_call_kernels();
// Advances the epoch. The first call of a session meets the peers (bounded by the limit) and compares terms with them.
void begin_call(const DeviceWorld& world, CallStamps* stamps, cudaStream_t stream);
// Counts what this rank has dispatched at each peer: `rows` [world], in device memory. Behind the kernel that wrote
// them.
void count_dispatched(const DeviceWorld& world, const int64_t* rows, int64_t row_bytes, cudaStream_t stream);
void await_peers(const AwaitTask& task, cudaStream_t stream);

struct FinishTask {
  DeviceWorld world;
  bool dispatched;      // the rank's input rows are free again, too
  const IdReport* ids;  // in device memory: faults to tell the host of; null where they have refused the call
  CallStamps* stamps;   // null: not recorded
};
// Grants the peers their credits: this rank's staging is free again.
void finish_call(const FinishTask& task, cudaStream_t stream);
// Tells the peers, when the host lets go of the session, that nothing more will come from this rank.
void close_session(const DeviceWorld& world, cudaStream_t stream);
// Marks the rank's part as ready, with the epoch from which credits count. By the host, before any call.
void open_session(const DeviceWorld& world, uint64_t first_epoch, cudaStream_t stream);

}  // namespace tileoverlap
