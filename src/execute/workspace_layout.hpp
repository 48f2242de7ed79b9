#pragma once
// The memory that the ranks of one session share: one allocation a rank, one struct that knows every offset.

#include <cstddef>
#include <cstdint>

#include "tileoverlap/core/error.hpp"
#include "tileoverlap/core/math.hpp"

namespace tileoverlap {

// Words a rank keeps for each of its peers; the peer writes them, the rank reads them.
enum class Word : int32_t {
  kDispatched,      // bytes that the peer has dispatched to this rank's experts, of all calls
  kReturned,        // bytes that the peer has returned to this rank, of all calls
  kDispatchCredit,  // last epoch of which the peer's input rows are free again
  kCredit,          // last epoch of which the peer's staging is free again
  kPlan,            // fingerprint of the plan whose rows the peer counts in kReturned
  kClosed,          // 1 once the peer has closed its session
  kFailed,          // 1 once the peer has written its WaitRecord into our inbox
};
inline constexpr int64_t kWords = 7;
inline constexpr int64_t kWordStride = 64;  // bytes; a cache line each, since different peers write them

// What has become of a rank, for peers that come later than it went.
enum RankState : uint64_t { kNotReady, kReady, kClosed, kFailed };

// What a rank says at the head of a layer call that is planned on the device: its counts, or why it refuses.
struct VoteHead {
  uint64_t epoch;        // of the call; written last
  int64_t refusal_size;  // 0: counts follow; else bytes of the reason that follows
};

// Bytes of what lies in a rank's part; the same on all ranks.
struct WorkspaceSizes {
  int64_t staging = 0, input = 0;
  int64_t vote = 0;  // behind the head of a vote; 0 where ranks vote by another way
  // Rows of the returned GEMM, and tokens on their way to experts: for links that put rows only from a rank's part.
  int64_t output = 0, outgoing = 0;
};

struct WorkspaceLayout {
  int32_t world = 0;
  int64_t vote_stride = 0;
  int64_t words = 0, ready = 0, alarm = 0, inbox = 0, votes = 0, staging = 0, input = 0, output = 0, outgoing = 0;
  int64_t total = 0;

  static WorkspaceLayout make(int32_t world, const WorkspaceSizes& sizes) {
    constexpr int64_t kPartAlignment = 128;
    WorkspaceLayout layout{.world = world};
    const auto place = [&](int64_t bytes) {
      const int64_t at = layout.total;
      layout.total = align_up(at + bytes, kPartAlignment);
      return at;
    };
    layout.words = place(kWords * world * kWordStride);
    layout.ready = place(kWordStride);
    layout.alarm = place(kWordStride);
    layout.inbox = place(world * inbox_stride());
    if (sizes.vote > 0) {
      layout.vote_stride = align_up(static_cast<int64_t>(sizeof(VoteHead)) + sizes.vote, kPartAlignment);
      // Two calls' votes: a rank that votes in call n + 2 has ended call n + 1, for which each peer voted after its
      // call n, so nobody reads the votes of n any more.
      layout.votes = place(2 * world * layout.vote_stride);
    }
    layout.staging = place(sizes.staging);
    layout.input = place(sizes.input);
    layout.output = place(sizes.output);
    layout.outgoing = place(sizes.outgoing);
    return layout;
  }

  TILEOVERLAP_HD static constexpr int64_t inbox_stride() {
    return align_up(static_cast<int64_t>(sizeof(WaitRecord)), kWordStride);
  }
  TILEOVERLAP_HD int64_t word_offset(Word word, int32_t writer) const {
    return words + (static_cast<int64_t>(word) * world + writer) * kWordStride;
  }
  TILEOVERLAP_HD int64_t inbox_offset(int32_t writer) const { return inbox + writer * inbox_stride(); }
  TILEOVERLAP_HD int64_t vote_offset(uint64_t epoch, int32_t writer) const {
    return votes + (static_cast<int64_t>(epoch % 2) * world + writer) * vote_stride;
  }
};

}  // namespace tileoverlap
