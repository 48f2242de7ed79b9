#pragma once
// Sends finished rows to their owners while the GEMM is still running.

#include <atomic>
#include <cstdint>
#include <span>

#include "execute/disorder.hpp"
#include "execute/recorder.hpp"
#include "execute/watch.hpp"
#include "produce/cpu_producer.hpp"
#include "tileoverlap/plan/plan.hpp"

namespace tileoverlap {

// The return of one call. Aggregate; borrows everything.
struct ConsumeTask {
  const PlanData* plan;
  const std::byte* output;  // [plan->rows, n]
  int64_t row_bytes;
  const TileFlags* flags;
  RankMemory own;
  std::span<const RankMemory> peers;
  uint64_t epoch;
  const TaskOrder* order;  // of segments
  std::atomic<int64_t>* ticket;
  Watch* watch;
  Recorder* recorder;
};

// Draws segments until none is left or the call has failed. Called by each consumer thread; `worker` as in Timeline.
void consume_segments(const ConsumeTask& task, int32_t worker, Delay& delay);

}  // namespace tileoverlap
