#pragma once
// Disorder on purpose: shuffled tasks and random waits, for tests (CpuFaults).

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "tileoverlap/execute/cpu_executor.hpp"

namespace tileoverlap {

// A random wait of up to the limit; none where the limit is 0. One object a worker: not thread safe.
class Delay {
 public:
  Delay(int32_t max_us, uint64_t seed) : max_us_(max_us), random_(seed) {}
  void operator()() {
    if (max_us_ <= 0) return;
    std::this_thread::sleep_for(std::chrono::microseconds(std::uniform_int_distribution(0, max_us_)(random_)));
  }

 private:
  int32_t max_us_;
  std::mt19937_64 random_;
};

// The order in which independent tasks are taken: as planned, or a permutation that differs in each epoch.
class TaskOrder {
 public:
  void set(int64_t tasks, uint64_t shuffle_seed, uint64_t epoch) {
    permutation_.clear();
    if (shuffle_seed == 0) return;
    permutation_.resize(static_cast<size_t>(tasks));
    std::iota(permutation_.begin(), permutation_.end(), int64_t{0});
    std::shuffle(permutation_.begin(), permutation_.end(), std::mt19937_64(shuffle_seed * 0x9E3779B97F4A7C15u + epoch));
  }
  int64_t operator[](int64_t i) const { return permutation_.empty() ? i : permutation_[static_cast<size_t>(i)]; }

 private:
  std::vector<int64_t> permutation_;
};

}  // namespace tileoverlap
