#pragma once
// One thread a rank.

#include <gtest/gtest.h>

#include <cstdint>
#include <exception>
#include <thread>
#include <vector>

namespace tileoverlap::testing {

// Calls function(rank) for all ranks at once and waits for all of them. What one throws fails the test.
template <class Function>
void on_each_rank(int32_t world, Function&& function) {
  std::vector<std::thread> threads;
  for (int32_t rank = 0; rank < world; ++rank) {
    threads.emplace_back([&function, rank] {
      try {
        function(rank);
      } catch (const std::exception& error) {
        ADD_FAILURE() << "thread " << rank << " threw " << error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace tileoverlap::testing
