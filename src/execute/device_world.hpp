#pragma once
// What kernels know of their session: all ranks' parts of the shared memory, the rank's own control words, and where
// the host looks for news. Plain structs, passed by value.

#include <cstdint>

#include "execute/workspace_layout.hpp"
#include "tileoverlap/core/api.hpp"
#include "tileoverlap/core/error.hpp"

namespace tileoverlap {

// Words of one rank in its own device memory, not seen by peers.
struct Control {
  uint64_t epoch;       // of the call at hand
  uint64_t stopped;     // 1 once the session has failed: every kernel that has not begun leaves at once
  uint64_t next_piece;  // the consumer's ticket
  uint64_t connected;   // 1 once all peers are known to have been prepared with the same terms
};

// Faults of ids, which kernels see first. Indices that do not apply are -1.
struct IdReport {
  int64_t copy = -1;    // token * top_k + slot of the first id that is out of range
  int64_t value = 0;    // that id
  int32_t expert = -1;  // or: an expert whose copies are not those of the plan
  int64_t copies = 0;   // that the ids have
  int64_t planned = 0;  // that the plan has
};

// In pinned host memory. Kernels write, `failed` and `refused` last; the host reads without asking the GPU.
struct Status {
  uint64_t failed = 0;  // 1: `record` says why
  WaitRecord record = {};
  uint64_t refused = 0;  // epoch of a refused call, of which the host has not yet been told
  int32_t refused_by = -1;
  int32_t refusal_size = 0;
  static constexpr int64_t kLongestRefusal = 480;
  char refusal[kLongestRefusal] = {};
  uint64_t bad_ids = 0;  // epoch of a call with `ids`
  IdReport ids = {};
};

struct DeviceWorld {
  WorkspaceLayout layout = {};
  int32_t rank = 0;
  // [world], in device memory: each rank's part as this rank's device sees it; null where only the link reaches it.
  std::byte* const* parts = nullptr;
  const int32_t* pes = nullptr;  // [world], in device memory: numbers of the ranks in NVSHMEM's world; else null
  uint64_t terms = 0;            // hash of what all ranks must agree on
  Control* control = nullptr;
  Status* status = nullptr;
  int64_t limit_ns = 0;

  TILEOVERLAP_HD int32_t world() const { return layout.world; }

#if defined(__CUDACC__)
  __device__ std::byte* own() const { return parts[rank]; }
  // Words by offset into a part. Of peers: for links that reach them by pointer.
  __device__ uint64_t* word_at(int32_t at, int64_t offset) const {
    return reinterpret_cast<uint64_t*>(parts[at] + offset);
  }
  __device__ uint64_t* own_word_at(int64_t offset) const { return word_at(rank, offset); }
  __device__ uint64_t* own_word(Word what, int32_t writer) const {
    return own_word_at(layout.word_offset(what, writer));
  }
  __device__ VoteHead* own_vote(uint64_t epoch, int32_t writer) const {
    return reinterpret_cast<VoteHead*>(own() + layout.vote_offset(epoch, writer));
  }
#endif
};

}  // namespace tileoverlap
