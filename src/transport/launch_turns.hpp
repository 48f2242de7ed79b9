#pragma once
// Taking turns with launches, for ranks of one process where a launch waits for its kernel (CUDA_LAUNCH_BLOCKING=1).
//
// There, a kernel that waits for a peer keeps that peer's launches from the GPU, and both wait until the limit. So a
// call is cut into stages such that each waits only for what earlier stages of the peers do, and a rank begins a stage
// when all have ended the one before. One thread a rank.

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <limits>
#include <mutex>
#include <vector>

namespace tileoverlap {

class LaunchTurns {
 public:
  explicit LaunchTurns(int32_t world) : done_(static_cast<size_t>(world), 0) {}

  // Runs `stage`, the next of this rank, when its turn has come or `limit_ns` has passed: then the wait on the device
  // will say who is missing.
  template <class Stage>
  void run(int32_t rank, int64_t limit_ns, Stage stage) {
    {
      std::unique_lock lock(mutex_);
      const uint64_t turn = done_[static_cast<size_t>(rank)];
      changed_.wait_for(lock, std::chrono::nanoseconds(limit_ns), [&] { return slowest() >= turn; });
    }
    stage();
    const std::scoped_lock lock(mutex_);
    ++done_[static_cast<size_t>(rank)];
    changed_.notify_all();
  }

  // Nobody has to wait for this rank any more.
  void leave(int32_t rank) {
    const std::scoped_lock lock(mutex_);
    done_[static_cast<size_t>(rank)] = std::numeric_limits<uint64_t>::max();
    changed_.notify_all();
  }

 private:
  uint64_t slowest() const { return *std::min_element(done_.begin(), done_.end()); }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<uint64_t> done_;  // stages by rank
};

}  // namespace tileoverlap
