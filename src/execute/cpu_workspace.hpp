#pragma once
// The memory that the ranks of one session share: one allocation a rank, one struct that knows every offset.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "tileoverlap/core/error.hpp"
#include "tileoverlap/core/math.hpp"
#include "tileoverlap/transport/transport.hpp"

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

struct WorkspaceLayout {
  int32_t world = 0;
  int64_t words = 0, ready = 0, alarm = 0, inbox = 0, staging = 0, input = 0, total = 0;

  static WorkspaceLayout make(int32_t world, int64_t staging_bytes, int64_t input_bytes) {
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
    layout.inbox = place(world * align_up(sizeof(WaitRecord), kWordStride));
    layout.staging = place(staging_bytes);
    layout.input = place(input_bytes);
    return layout;
  }
};

// One rank's part, seen by itself or by a peer. Borrows.
struct RankMemory {
  std::byte* base = nullptr;
  const WorkspaceLayout* layout = nullptr;

  std::atomic_ref<uint64_t> word(Word word, int32_t writer) const {
    return at(layout->words + (static_cast<int64_t>(word) * layout->world + writer) * kWordStride);
  }
  // A RankState: nobody may write rows or counters into the part before it is kReady.
  std::atomic_ref<uint64_t> ready() const { return at(layout->ready); }
  // Counts the failures that peers reported: one word to look at while waiting.
  std::atomic_ref<uint64_t> alarm() const { return at(layout->alarm); }
  std::byte* inbox(int32_t writer) const {
    return base + layout->inbox + writer * align_up(sizeof(WaitRecord), kWordStride);
  }
  std::byte* staging() const { return base + layout->staging; }
  std::byte* input() const { return base + layout->input; }

 private:
  std::atomic_ref<uint64_t> at(int64_t offset) const {
    return std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(base + offset));
  }
};

}  // namespace tileoverlap
