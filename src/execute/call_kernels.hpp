#pragma once
// What the small kernels around a call are told: its head, its end, and the waits for peers between its stages.

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
  WaitFor what;         // kDispatchCredit, kDispatchArrival, kCredit or kArrival
  const int64_t* rows;  // [world], in device memory: rows of this call by peer; that arrive, or for kCredit that leave
  int64_t row_bytes;    // of an arriving row
  uint64_t* totals;     // [world], in device memory: bytes by peer of all calls, this one added (arrivals only)
  PlanHead* plan;       // kArrival: its fingerprint is compared with the peers'. kCredit: it is told to peers that rows
                        // go to; of a call that has failed, no band is left to compute
  CallStamps* stamps;   // null: not recorded
};

struct FinishTask {
  DeviceWorld world;
  bool dispatched;      // the rank's input rows are free again, too
  const IdReport* ids;  // in device memory: faults to tell the host of; null where they have refused the call
  CallStamps* stamps;   // null: not recorded
};

}  // namespace tileoverlap
