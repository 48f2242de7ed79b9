#pragma once
// What happened when, for one call: spans recorded by worker threads (CPU) or device time stamps (GPU).

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tileoverlap/core/api.hpp"

namespace tileoverlap {

enum class Span : int32_t {
  kCounts,
  kPlan,
  kDispatch,
  kDispatchWait,
  kFirstProjection,
  kTile,         // produce: one output tile of the returned GEMM
  kBandWait,     // consume: flags of a segment's bands
  kCreditWait,   // consume: the owner's staging is free
  kCopy,         // consume: one segment on its way
  kArrivalWait,  // reduce
  kReduce,
};

TILEOVERLAP_API const char* name(Span span);

struct TimelineEvent {
  Span span = Span::kTile;
  int32_t rank = 0;
  int32_t worker = 0;  // 0 driver; 1.. producers; then consumers (see Timeline::worker_names)
  int32_t item = -1;   // band for tiles and waits, segment for copies
  int32_t peer = -1;
  int64_t begin_ns = 0;  // steady clock, one origin for all ranks of a process
  int64_t end_ns = 0;
};

struct Timeline {
  std::vector<TimelineEvent> events;
  std::vector<std::string> worker_names;  // indexed by TimelineEvent::worker
};

// A Chrome/Perfetto trace (JSON): one process a rank, one row a worker thread, times in microseconds from the
// first event. `timelines[i]` may come from any rank.
TILEOVERLAP_API std::string to_chrome_trace(std::span<const Timeline> timelines);

// When the last tile was produced and the last row landed; 0 where there was none.
struct OverlapTimes {
  int64_t first_ns = 0;     // first event of the operator (produce and consume)
  int64_t gemm_end_ns = 0;  // end of the last tile
  int64_t landed_ns = 0;    // end of the last copy
};
TILEOVERLAP_API OverlapTimes overlap_times(std::span<const Timeline> timelines);

}  // namespace tileoverlap
