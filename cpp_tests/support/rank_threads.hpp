#pragma once
// One thread a rank.

#include <cstdint>
#include <thread>
#include <vector>

namespace tileoverlap::testing {

// Calls function(rank) for all ranks at once and waits for all of them.
template <class Function>
void on_each_rank(int32_t world, Function&& function) {
  std::vector<std::thread> threads;
  for (int32_t rank = 0; rank < world; ++rank) threads.emplace_back([&function, rank] { function(rank); });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace tileoverlap::testing
