#pragma once
// Bounded waits: every wait of a rank goes through its Watch, which ends it when what it waits for is there, when its
// limit has passed, when a peer reports a failure or has closed, or when this rank closes.

#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "execute/cpu_workspace.hpp"
#include "execute/recorder.hpp"
#include "tileoverlap/core/error.hpp"

namespace tileoverlap {

// Gives way between two looks: yields at first, then sleeps, so that many more threads than cores get on.
class Backoff {
 public:
  void pause() {
    constexpr int kYields = 16;
    constexpr int64_t kFirstSleep = 20'000, kLongestSleep = 500'000;
    if (looks_++ < kYields) {
      std::this_thread::yield();
      return;
    }
    sleep_ns_ = sleep_ns_ == 0 ? kFirstSleep : std::min(kLongestSleep, sleep_ns_ * 3 / 2);
    std::this_thread::sleep_for(std::chrono::nanoseconds(sleep_ns_));
  }

 private:
  int looks_ = 0;
  int64_t sleep_ns_ = 0;
};

class Watch {
 public:
  Watch(int32_t rank, RankMemory own) : rank_(rank), own_(own) {}

  // Before each call, by the driver.
  void begin(uint64_t epoch, int64_t limit_ns) {
    epoch_ = epoch;
    limit_ns_ = limit_ns;
  }
  // When all ranks' memory is known: whom to tell of a failure.
  void connect(std::vector<RankMemory> peers) { peers_ = std::move(peers); }

  // Waits until ready() returns true; false when the call has failed or this rank closes. `ready` makes the acquire
  // and names the release it pairs with. `site` says what is waited for; rank, epoch and limit are filled in here,
  // `observe(record)` fills in what was seen when the limit has passed.
  template <class Ready, class Observe>
  bool wait(WaitRecord site, Ready&& ready, Observe&& observe) {
    if (ready()) return true;
    const int64_t begin = now_ns();
    Backoff backoff;
    while (!ready()) {
      if (stopped()) return false;
      // The peer writes kClosed last: what it had done before is visible now, so one more look decides.
      if (site.peer != rank_ && peer_closed(site.peer)) {
        if (ready()) return true;
        site.what = WaitFor::kPeerClosed;
        expire(site, observe);
        return false;
      }
      if (now_ns() - begin >= limit_ns_) {
        expire(site, observe);
        return false;
      }
      backoff.pause();
    }
    return true;
  }

  // True once waits are pointless: this rank has failed or closes, or a peer has reported a failure.
  bool stopped() {
    if (stop_.load(std::memory_order_acquire)) return true;
    if (own_.alarm().load(std::memory_order_acquire) == 0) return false;
    read_inbox();
    return true;
  }

  bool peer_closed(int32_t peer) const {
    return own_.word(Word::kClosed, peer).load(std::memory_order_acquire) != 0;  // pairs with close()
  }

  // Ends this rank's call with `record` and tells the peers, unless it has failed before.
  void fail(const WaitRecord& record) {
    {
      const std::scoped_lock lock(mutex_);
      if (failure_.has_value()) return;
      failure_ = record;
    }
    stop_.store(true, std::memory_order_release);
    for (size_t peer = 0; peer < peers_.size(); ++peer) {
      if (static_cast<int32_t>(peer) == rank_ || peers_[peer].base == nullptr) continue;
      std::memcpy(peers_[peer].inbox(rank_), &record, sizeof(record));
      // Release: the record is there before the word, the word before the alarm. Pairs with read_inbox and stopped.
      peers_[peer].word(Word::kFailed, rank_).store(1, std::memory_order_release);
      peers_[peer].alarm().fetch_add(1, std::memory_order_release);
    }
  }

  // Makes all waits of this rank end: it is being destroyed.
  void cancel() { stop_.store(true, std::memory_order_release); }

  // Tells the peers that nothing more will come from this rank. After its last write to them.
  void close() {
    for (size_t peer = 0; peer < peers_.size(); ++peer) {
      if (static_cast<int32_t>(peer) == rank_ || peers_[peer].base == nullptr) continue;
      peers_[peer].word(Word::kClosed, rank_).store(1, std::memory_order_release);
    }
  }

  std::optional<WaitRecord> failure() const {
    const std::scoped_lock lock(mutex_);
    return failure_;
  }
  int64_t limit_ns() const { return limit_ns_; }

 private:
  template <class Observe>
  void expire(WaitRecord& site, Observe& observe) {
    site.rank = rank_;
    site.epoch = epoch_;
    site.timeout_ns = limit_ns_;
    observe(site);
    fail(site);
  }

  void read_inbox() {
    for (int32_t peer = 0; peer < own_.layout->world; ++peer) {
      if (own_.word(Word::kFailed, peer).load(std::memory_order_acquire) == 0) continue;  // pairs with fail()
      WaitRecord record;
      std::memcpy(&record, own_.inbox(peer), sizeof(record));
      {
        const std::scoped_lock lock(mutex_);
        if (!failure_.has_value()) failure_ = record;
      }
      stop_.store(true, std::memory_order_release);
      return;
    }
  }

  const int32_t rank_;
  const RankMemory own_;
  std::vector<RankMemory> peers_;
  uint64_t epoch_ = 0;
  int64_t limit_ns_ = 0;
  std::atomic<bool> stop_{false};
  mutable std::mutex mutex_;
  std::optional<WaitRecord> failure_;
};

}  // namespace tileoverlap
