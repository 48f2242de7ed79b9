#pragma once
// The copy index on a GPU: what fill_copy_index makes on the host, from ids that only the device has seen.
//
// Copies of one expert are numbered by (token, slot): chunks of consecutive copies are counted, the counts are summed
// chunk by chunk, and each chunk numbers its own copies from there. The same ids give the same index and report.

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "execute/device_world.hpp"
#include "plan/device_plan.hpp"
#include "tileoverlap/core/dtype.hpp"
#include "tileoverlap/core/math.hpp"

namespace tileoverlap {

inline constexpr int64_t kCopiesPerChunk = 512;  // one warp's

// One owner's ids and what is counted of them. All pointers are device memory.
struct CountTask {
  const void* ids;    // [tokens, top_k], slots side by side; -1: no copy
  DType id_dtype;     // kInt32 or kInt64
  int64_t id_stride;  // elements from one token's ids to the next
  int64_t tokens;     // tokens * top_k < 2^31
  int32_t top_k;
  int32_t experts;  // of all ranks

  int32_t* chunks;   // [chunks][experts + 1]: see IndexLayout
  int32_t* totals;   // [experts] copies of each expert: this rank's row of the counts matrix
  IdReport* report;  // overwritten by scan_chunks, completed by index_copies
};

struct IndexTask {
  CountTask counted;  // as count_copies and scan_chunks have left it
  DevicePlan plan;
  const int32_t* expert_begin;  // [world + 1], as in Placement
  int32_t rank, world;

  // [tokens * top_k] each, as in CopyIndex; null: not wanted.
  int64_t* gather_row;
  int32_t* peer;
  int64_t* dispatch_row;
};

// Where the parts lie in one allocation for at most `max_copies` copies.
struct IndexLayout {
  int64_t report = 0, totals = 0, chunks = 0, gather_row = 0, dispatch_row = 0, peer = 0;
  int64_t total = 0;

  static IndexLayout make(int64_t max_copies, int32_t experts) {
    IndexLayout layout;
    const auto place = [&](int64_t count, size_t size) {
      constexpr int64_t kAlignment = 128;
      const int64_t at = layout.total;
      layout.total = align_up(at + count * static_cast<int64_t>(size), kAlignment);
      return at;
    };
    layout.report = place(1, sizeof(IdReport));
    layout.totals = place(experts, sizeof(int32_t));
    // A chunk's copies of each expert, later those of the chunks before; behind them its first copy with a bad id.
    layout.chunks = place(ceil_div(max_copies, kCopiesPerChunk) * (int64_t{experts} + 1), sizeof(int32_t));
    layout.gather_row = place(max_copies, sizeof(int64_t));
    layout.dispatch_row = place(max_copies, sizeof(int64_t));
    layout.peer = place(max_copies, sizeof(int32_t));
    return layout;
  }
};

// Launched one after the other on one stream. They check nothing, launch also for 0 tokens, and return the launch's
// error.
cudaError_t load_index_copies();
// Counts each chunk's copies. An id that is neither -1 nor an expert is not counted.
cudaError_t count_copies(const CountTask& task, cudaStream_t stream);
// Sums over chunks: totals, and the report with the first bad id or without any.
cudaError_t scan_chunks(const CountTask& task, cudaStream_t stream);
// Writes the index and uses `chunks` up. Copies that the plan does not have, and all of a refused call, get -1. If the
// ids are not those that the plan was made from, the report names the first expert whose copies differ.
cudaError_t index_copies(const IndexTask& task, cudaStream_t stream);

}  // namespace tileoverlap
