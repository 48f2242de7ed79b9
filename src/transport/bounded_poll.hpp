#pragma once
// Waiting for sockets, with a limit.

#include <poll.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <span>

namespace tileoverlap {

// The limit of one wait, which begins when this is made, and what is asked meanwhile. Borrows `interrupt`.
class BoundedPoll {
 public:
  BoundedPoll(int64_t limit_ns, const std::function<void()>& interrupt)
      : limit_ns_(limit_ns), end_(Clock::now() + std::chrono::nanoseconds(limit_ns)), interrupt_(interrupt) {}

  int64_t limit_ns() const { return limit_ns_; }
  bool over() const { return Clock::now() >= end_; }
  // Returns once one of `polled` is ready, after `most`, at the limit, or for no reason. Throws what interrupt throws.
  void wait(std::span<pollfd> polled, std::chrono::milliseconds most = std::chrono::milliseconds(100)) const {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end_ - Clock::now());
    const auto timeout = std::clamp(left, std::chrono::milliseconds(0), most);
    // Without descriptors it sleeps; an error (EINTR) is a return for no reason.
    if (poll(polled.data(), polled.size(), static_cast<int>(timeout.count())) < 0) {
      for (pollfd& entry : polled) entry.revents = 0;
    }
    if (interrupt_) interrupt_();
  }

 private:
  using Clock = std::chrono::steady_clock;

  int64_t limit_ns_;
  Clock::time_point end_;
  const std::function<void()>& interrupt_;
};

}  // namespace tileoverlap
