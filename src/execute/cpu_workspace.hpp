#pragma once
// One rank's part of the shared memory, seen by threads.

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "execute/workspace_layout.hpp"

namespace tileoverlap {

// One rank's part, seen by itself or by a peer. Borrows.
struct RankMemory {
  std::byte* base = nullptr;
  const WorkspaceLayout* layout = nullptr;

  std::atomic_ref<uint64_t> word(Word word, int32_t writer) const { return at(layout->word_offset(word, writer)); }
  // A RankState: nobody may write rows or counters into the part before it is kReady.
  std::atomic_ref<uint64_t> ready() const { return at(layout->ready); }
  // Counts the failures that peers reported: one word to look at while waiting.
  std::atomic_ref<uint64_t> alarm() const { return at(layout->alarm); }
  std::byte* inbox(int32_t writer) const { return base + layout->inbox_offset(writer); }
  std::byte* staging() const { return base + layout->staging; }
  std::byte* input() const { return base + layout->input; }

 private:
  std::atomic_ref<uint64_t> at(int64_t offset) const {
    return std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(base + offset));
  }
};

}  // namespace tileoverlap
