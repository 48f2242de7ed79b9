#pragma once
// Bounded waits: every wait of a rank goes through its Watch, which ends it when what it waits for is there, when its
// limit has passed, when a peer reports a failure or has closed, or when this rank closes.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

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
  Watch(int32_t rank, const SymmetricMemory& memory, const WorkspaceLayout& layout)
      : rank_(rank), memory_(memory), layout_(layout), own_{memory.local(), &layout} {}

  // Before each call, by the driver.
  void begin(uint64_t epoch, int64_t limit_ns) {
    epoch_ = epoch;
    limit_ns_ = limit_ns;
  }
  int64_t limit_ns() const { return limit_ns_; }

  // Waits until ready() returns true; false when the call has failed or this rank closes. `ready` makes the acquire
  // and names the release it pairs with. `site` says what is waited for; rank, epoch and limit are filled in here,
  // `observe(record)` fills in what was seen when the limit has passed.
  // A wait for a peer lasts a little longer than its limit: the peer, which may wait for something of its own since
  // the same moment, is the one to say what is wrong.
  template <class Ready, class Observe>
  bool wait(const WaitRecord& site, Ready&& ready, Observe&& observe) {
    if (ready()) return true;
    const int64_t begin = now_ns();
    constexpr int64_t kLongestGrace = 5'000'000'000;
    const int64_t limit = limit_ns_ + (site.peer == rank_ ? 0 : std::min(limit_ns_ / 4, kLongestGrace));
    Backoff backoff;
    while (!stopped()) {
      if (ready()) return true;
      if (site.peer != rank_ && peer_closed(site.peer)) {
        // The peer writes this word last. What it had done before is visible now, so one more look decides; what it
        // may have failed of is too, and says more than that it is gone.
        if (ready()) return true;
        if (!stopped()) fail_closed(site.peer);
        return false;
      }
      if (now_ns() - begin >= limit) {
        if (ready()) return true;  // this thread itself may have been held up
        WaitRecord record = filled(site);
        observe(record);
        fail(record);
        return false;
      }
      backoff.pause();
    }
    // A peer waits for this rank, and this rank for something of its own: that is the cause.
    if (site.peer == rank_ && blamed()) {
      WaitRecord record = filled(site);
      observe(record);
      take_blame(record);
    }
    return false;
  }

  // True once waits are pointless: this rank has failed or closes, or a peer has reported a failure.
  bool stopped() {
    if (stop_.load(std::memory_order_acquire)) return true;
    if (own_.alarm().load(std::memory_order_acquire) == 0) return false;  // pairs with tell()
    for (int32_t peer = 0; peer < layout_.world; ++peer) {
      // Acquire: pairs with the release in tell(); the record is there.
      if (own_.word(Word::kFailed, peer).load(std::memory_order_acquire) != 0) adopt(own_, peer);
    }
    return true;
  }

  bool peer_closed(int32_t peer) const {
    return own_.word(Word::kClosed, peer).load(std::memory_order_acquire) != 0;  // pairs with close()
  }

  // Takes note of what has become of a peer before this rank was there to be told. True if the peer's part can be used.
  bool meet(int32_t peer) {
    const RankMemory part = memory_of(peer);
    const uint64_t state = part.ready().load(std::memory_order_acquire);  // pairs with the releases of `ready`
    if (state == RankState::kFailed) {
      adopt(part, peer);
      return false;
    }
    // Its last call may not have needed us, and ours may not need it: only a wait can tell.
    if (state == RankState::kClosed) own_.word(Word::kClosed, peer).store(1, std::memory_order_release);
    return true;
  }

  // Ends this rank's call with `record` and tells the peers, unless it has failed before.
  void fail(const WaitRecord& record) {
    {
      const std::scoped_lock lock(mutex_);
      if (failure_.has_value()) return;
      failure_ = record;
    }
    announce(record);
  }
  void fail_closed(int32_t peer) { fail(filled({.what = WaitFor::kPeerClosed, .peer = peer})); }
  WaitRecord filled(WaitRecord record) const {
    record.rank = rank_;
    record.epoch = epoch_;
    record.timeout_ns = limit_ns_;
    return record;
  }

  // Makes all waits of this rank end: it is being destroyed.
  void cancel() { stop_.store(true, std::memory_order_release); }

  // Tells the peers that nothing more will come from this rank. After its last write to them.
  void close() {
    if (!failure()) own_.ready().store(RankState::kClosed, std::memory_order_release);
    for_each_peer([&](const RankMemory& part) { part.word(Word::kClosed, rank_).store(1, std::memory_order_release); });
  }

  // What ended the call. Where this rank found that a peer did not deliver and that peer has said why, the peer's word.
  std::optional<WaitRecord> failure() const {
    const std::scoped_lock lock(mutex_);
    if (!failure_ || failure_->rank != rank_ || failure_->peer == rank_ || failure_->peer < 0) return failure_;
    if (own_.word(Word::kFailed, failure_->peer).load(std::memory_order_acquire) == 0) return failure_;
    const WaitRecord told = inbox_record(own_, failure_->peer);
    return told.rank == failure_->peer && told.peer != rank_ ? told : failure_;
  }

  RankMemory memory_of(int32_t peer) const { return {memory_.peer(peer), &layout_}; }

 private:
  bool blamed() const {
    const std::scoped_lock lock(mutex_);
    return failure_ && failure_->rank != rank_ && failure_->peer == rank_;
  }

  void take_blame(const WaitRecord& record) {
    {
      const std::scoped_lock lock(mutex_);
      if (failure_->rank == rank_) return;  // another worker of this rank has
      failure_ = record;
    }
    announce(record);
  }

  // Called once a rank: fail() and take_blame() go on only for the first record of the rank's own.
  void announce(const WaitRecord& record) {
    stop_.store(true, std::memory_order_release);
    tell(own_, record);  // for peers that come later: see meet()
    own_.ready().store(RankState::kFailed, std::memory_order_release);
    for_each_peer([&](const RankMemory& part) { tell(part, record); });
  }

  // Writes the record into a part's inbox, then rings. Release, twice: the record before the word, the word before
  // the alarm.
  void tell(const RankMemory& part, const WaitRecord& record) const {
    std::memcpy(part.inbox(rank_), &record, sizeof(record));
    part.word(Word::kFailed, rank_).store(1, std::memory_order_release);
    part.alarm().fetch_add(1, std::memory_order_release);
  }

  static WaitRecord inbox_record(const RankMemory& part, int32_t writer) {
    WaitRecord record;
    std::memcpy(&record, part.inbox(writer), sizeof(record));
    return record;
  }

  void adopt(const RankMemory& part, int32_t writer) {
    const WaitRecord record = inbox_record(part, writer);
    {
      const std::scoped_lock lock(mutex_);
      if (!failure_.has_value()) failure_ = record;
    }
    stop_.store(true, std::memory_order_release);
  }

  // Those that are there: a failure may come before all have been met.
  template <class Visit>
  void for_each_peer(Visit visit) const {
    for (int32_t peer = 0; peer < layout_.world; ++peer) {
      const RankMemory part = memory_of(peer);
      if (peer != rank_ && part.base != nullptr) visit(part);
    }
  }

  const int32_t rank_;
  const SymmetricMemory& memory_;
  const WorkspaceLayout& layout_;
  const RankMemory own_;
  uint64_t epoch_ = 0;
  int64_t limit_ns_ = 0;
  std::atomic<bool> stop_{false};
  mutable std::mutex mutex_;
  std::optional<WaitRecord> failure_;
};

}  // namespace tileoverlap
