#pragma once
// Time stamps of one call, one list a worker so that recording needs no lock.

#include <chrono>
#include <cstdint>
#include <new>
#include <utility>
#include <vector>

#include "tileoverlap/core/timeline.hpp"

namespace tileoverlap {

inline int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

class Recorder {
 public:
  Recorder(bool enabled, int32_t rank, std::vector<std::string> worker_names)
      : rank_(rank), names_(std::move(worker_names)), lists_(enabled ? names_.size() : 0) {}

  void clear() {
    for (auto& list : lists_) list.clear();
  }

  void add(const TimelineEvent& event) {
    if (!lists_.empty()) lists_[static_cast<size_t>(event.worker)].push_back(event);
  }

  // Runs `body` and records it for `worker`.
  template <class Body>
  auto span(int32_t worker, Span what, int32_t item, int32_t peer, Body&& body) {
    const Stamp stamp{*this, worker, what, item, peer, lists_.empty() ? 0 : now_ns()};
    return body();
  }

  Timeline timeline() const {
    Timeline timeline{.events = {}, .worker_names = names_};
    for (const auto& list : lists_) timeline.events.insert(timeline.events.end(), list.begin(), list.end());
    return timeline;
  }

 private:
  struct Stamp {
    Recorder& recorder;
    int32_t worker;
    Span what;
    int32_t item, peer;
    int64_t begin;
    ~Stamp() {
      if (recorder.lists_.empty()) return;
      try {
        recorder.add({what, recorder.rank_, worker, item, peer, begin, now_ns()});
      } catch (const std::bad_alloc&) {  // a call does not end for want of a time stamp
      }
    }
  };

  int32_t rank_;
  std::vector<std::string> names_;
  std::vector<std::vector<TimelineEvent>> lists_;
};

}  // namespace tileoverlap
