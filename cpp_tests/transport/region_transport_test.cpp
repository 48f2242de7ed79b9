// Regions that are taken from somewhere as they are needed: here from the heap.

#include "transport/region_transport.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "support/messages.hpp"
#include "support/rank_threads.hpp"
#include "support/session_world.hpp"
#include "tileoverlap/core/error.hpp"
#include "tileoverlap/transport/in_process.hpp"

namespace tileoverlap {
namespace {

using testing::kNoLimitReached;
using testing::message_of;
using testing::on_each_rank;
using testing::Says;

// Symmetric memory of a few ranks of this process: the n-th region of each rank belongs to the n-th of the others.
class Heap {
 public:
  explicit Heap(int32_t world) : world_(world), taken_(static_cast<size_t>(world), 0) {}

  Region grow(int32_t rank, size_t bytes) {
    const std::scoped_lock lock(mutex_);
    const size_t number = taken_[static_cast<size_t>(rank)]++;
    if (number == regions_.size()) {
      std::vector<std::byte*> bases;
      for (int32_t peer = 0; peer < world_; ++peer) {
        bases.push_back(live_.emplace_back(make(bytes)).get());
      }
      regions_.push_back(bases);
    }
    return {.bases = regions_[number], .own = regions_[number][static_cast<size_t>(rank)], .bytes = bytes};
  }
  void shrink(const Region& region) {
    const std::scoped_lock lock(mutex_);
    ++shrunk_;
    std::erase_if(live_, [&](const Memory& memory) { return memory.get() == region.own; });
  }
  size_t regions() const { return regions_.size(); }
  int64_t shrunk() const { return shrunk_; }

 private:
  using Memory = std::unique_ptr<std::byte, decltype(&std::free)>;
  static Memory make(size_t bytes) {
    Memory memory(static_cast<std::byte*>(std::aligned_alloc(256, (bytes + 255) / 256 * 256)), &std::free);
    std::memset(memory.get(), 0, bytes);
    return memory;
  }

  const int32_t world_;
  std::mutex mutex_;
  std::vector<Memory> live_;
  std::vector<std::vector<std::byte*>> regions_;
  std::vector<size_t> taken_;  // by rank
  int64_t shrunk_ = 0;
};

constexpr int32_t kWorld = 3;

class GrowingRegions : public ::testing::Test {
 protected:
  GrowingRegions() {
    const auto process = make_in_process_world(kWorld);
    for (int32_t rank = 0; rank < kWorld; ++rank) {
      const std::shared_ptr<Exchange> exchange = process[static_cast<size_t>(rank)]->open_exchange();
      const auto gather = [exchange](std::span<const std::byte> mine) {
        return exchange->all_gather(mine, kNoLimitReached);
      };
      held_.push_back(std::make_shared<std::atomic<int64_t>>(0));
      transports_.push_back(
          make_region_transport({.name = "TestTransport",
                                 .rank = rank,
                                 .world = kWorld,
                                 .hub = std::make_shared<GatherHub>(rank, kWorld, gather),
                                 .zero = {},
                                 .regions = {},
                                 .grow = [this, rank](size_t bytes) { return heap_.grow(rank, bytes); },
                                 .shrink = [this](const Region& region) { heap_.shrink(region); },
                                 .check_usable =
                                     [this] {
                                       if (closed_) throw Error("it is closed");
                                     },
                                 .held = held_.back()}));
    }
  }

  using Memory = std::vector<std::shared_ptr<SymmetricMemory>>;  // by rank
  Memory allocate(size_t bytes) {
    Memory memory(kWorld);
    on_each_rank(kWorld, [&](int32_t rank) {
      const auto r = static_cast<size_t>(rank);
      memory[r] = transports_[r]->allocate("same", bytes);
    });
    return memory;
  }

  Heap heap_{kWorld};
  bool closed_ = false;
  std::vector<std::shared_ptr<std::atomic<int64_t>>> held_;
  std::vector<std::shared_ptr<Transport>> transports_;
};

TEST_F(GrowingRegions, TakeMemoryAsItIsNeeded) {
  const Memory small = allocate(1000), large = allocate(5000);
  EXPECT_EQ(heap_.regions(), 2U);
  for (size_t rank = 0; rank < kWorld; ++rank) {
    EXPECT_EQ(large[rank]->local(), large[(rank + 1) % kWorld]->peer(static_cast<int32_t>(rank)));
    EXPECT_NE(large[rank]->local(), small[rank]->local());
    EXPECT_TRUE(
        std::all_of(large[rank]->local(), large[rank]->local() + 5000, [](std::byte b) { return b == std::byte{}; }));
    EXPECT_EQ(*held_[rank], 2);
  }
}

TEST_F(GrowingRegions, UseAgainWhatNobodyHoldsAndZeroIt) {
  Memory memory = allocate(4096);
  std::vector<std::byte*> before;
  for (const auto& part : memory) {
    before.push_back(part->local());
    std::memset(part->local(), 0xff, 4096);
  }
  memory.clear();
  const Memory again = allocate(2048);
  EXPECT_EQ(heap_.regions(), 1U);
  for (size_t rank = 0; rank < kWorld; ++rank) {
    EXPECT_EQ(again[rank]->local(), before[rank]);
    EXPECT_TRUE(
        std::all_of(again[rank]->local(), again[rank]->local() + 2048, [](std::byte b) { return b == std::byte{}; }));
    EXPECT_EQ(*held_[rank], 1);
  }
}

TEST_F(GrowingRegions, GiveBackWhatIsTooSmallOnlyWhereNobodyHoldsIt) {
  const Memory held = allocate(1000);
  Memory free = allocate(2000);
  free[0].reset();
  const Memory third = allocate(3000);  // ranks 1 and 2 still hold the second region
  EXPECT_EQ(heap_.shrunk(), 0);
  free.clear();
  const Memory fourth = allocate(4000);
  EXPECT_EQ(heap_.shrunk(), kWorld);
  EXPECT_EQ(heap_.regions(), 4U);
  std::memset(held[0]->local(), 1, 1000);  // still ours
  std::memset(third[1]->local(), 1, 3000);
}

TEST_F(GrowingRegions, RefuseOnAllRanksWhatDiffersAndGoOn) {
  std::vector<std::string> messages(kWorld);
  on_each_rank(kWorld, [&](int32_t rank) {
    const auto r = static_cast<size_t>(rank);
    messages[r] = message_of<InvalidArgument>([&] { transports_[r]->allocate("same", rank == 2 ? 64 : 32); });
  });
  for (const std::string& message : messages) EXPECT_THAT(message, Says("32", "64", "rank 2"));
  EXPECT_EQ(allocate(128).size(), 3U);
}

TEST_F(GrowingRegions, RefuseAllocationsOnceTheyAreClosed) {
  const Memory memory = allocate(16);
  closed_ = true;
  EXPECT_THAT(message_of<Error>([&] { transports_[0]->allocate("same", 16); }), Says("closed"));
}

}  // namespace
}  // namespace tileoverlap
