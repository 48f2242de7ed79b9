#pragma once
// Sends token rows to the ranks that host their experts, straight to their planned row.

#include <atomic>
#include <cstdint>
#include <span>

#include "execute/disorder.hpp"
#include "execute/watch.hpp"
#include "tileoverlap/core/tensor.hpp"
#include "tileoverlap/dispatch/copy_index.hpp"
#include "tileoverlap/plan/plan.hpp"

namespace tileoverlap {

struct DispatchTask {
  const PlanData* plan;
  const CopyIndex* index;
  TensorView x;  // [T, width]
  RankMemory own;
  std::span<const RankMemory> peers;
  uint64_t epoch;
  std::atomic<int64_t>* ticket;
  Watch* watch;
};

// Waits until every rank's input rows are free again; false when the call has failed.
bool wait_for_dispatch_credits(const DispatchTask& task);

// Copies rows, token by token, until none is left. Called by several workers; the counters move when all are done.
void dispatch_rows(const DispatchTask& task);

// Counts what was sent at each peer.
void publish_dispatch(const DispatchTask& task, Delay& delay);

}  // namespace tileoverlap
