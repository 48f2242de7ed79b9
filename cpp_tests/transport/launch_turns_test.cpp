// Ranks take turns with launches where each launch waits for its kernel.

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "transport/launch_turns.hpp"

namespace tileoverlap {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

TEST(LaunchTurns, NobodyBeginsAStageBeforeAllHaveEndedTheOneBefore) {
  constexpr int32_t kRanks = 4;
  constexpr int kStages = 200;
  LaunchTurns turns(kRanks);
  std::vector<std::atomic<int>> ended(kRanks);
  std::atomic<int> early{0};
  std::vector<std::thread> threads;
  for (int32_t rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      for (int stage = 0; stage < kStages; ++stage) {
        turns.run(rank, 60 * kSecond, [&] {
          for (const auto& other : ended) early += other.load() < stage ? 1 : 0;
          ++ended[static_cast<size_t>(rank)];
        });
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(early, 0);
}

TEST(LaunchTurns, ARankThatIsMissingHoldsTheOthersNoLongerThanTheLimit) {
  LaunchTurns turns(2);
  int stages = 0;
  turns.run(0, kSecond / 100, [&] { ++stages; });
  turns.run(0, kSecond / 100, [&] { ++stages; });  // rank 1 has not ended its first
  EXPECT_EQ(stages, 2);
}

TEST(LaunchTurns, ARankThatHasLeftHoldsNobody) {
  LaunchTurns turns(2);
  turns.leave(1);
  int stages = 0;
  for (int i = 0; i < 3; ++i) turns.run(0, 600 * kSecond, [&] { ++stages; });
  EXPECT_EQ(stages, 3);
}

}  // namespace
}  // namespace tileoverlap
