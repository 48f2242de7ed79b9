#pragma once
// Independent items on all cores.

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace tileoverlap {

// item(0) .. item(items - 1), in as many threads as there are cores; in this one where there are few. Throws what the
// first of them threw.
template <class Item>
void for_all(size_t items, Item item) {
  constexpr size_t kFew = 8;  // a thread costs as much as some ranks' predictions
  if (items <= kFew) {
    for (size_t i = 0; i < items; ++i) item(i);
    return;
  }
  std::atomic<size_t> next = 0;
  std::mutex mutex;
  std::exception_ptr error;
  const auto work = [&] {
    try {
      for (size_t i = next++; i < items; i = next++) item(i);
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (error == nullptr) error = std::current_exception();
    }
  };
  {
    std::vector<std::jthread> helpers;
    for (size_t i = std::min<size_t>(items, std::thread::hardware_concurrency()); i > 1; --i)
      helpers.emplace_back(work);
    work();
  }
  if (error != nullptr) std::rethrow_exception(error);
}

}  // namespace tileoverlap
