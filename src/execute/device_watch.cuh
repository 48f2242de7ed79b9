#pragma once
// Bounded waits on the device: every wait ends when what it waits for is there, when its limit has passed, when a peer
// reports a failure or has closed, or when the session has failed elsewhere. Nothing traps.

#include "core/ptx.cuh"
#include "execute/device_world.hpp"

namespace tileoverlap {

// A kernel begins with this: false once the session has failed.
__device__ inline bool is_running(const DeviceWorld& world) {
  return ptx::load_relaxed_gpu(&world.control->stopped) == 0;
}

// Link: see peer_link.cuh.
template <class Link>
class DeviceWatch {
 public:
  __device__ explicit DeviceWatch(const DeviceWorld& world) : world_(world) {}

  __device__ bool running() const { return is_running(world_); }

  // Called by one thread. `ready` makes the acquire and names the release it pairs with; `observe(record)` fills in
  // what was seen when the limit has passed. A wait for a peer lasts a little longer than its limit: the peer, which
  // may wait for something of its own since the same moment, is the one to say what is wrong.
  template <class Ready, class Observe>
  __device__ bool wait(WaitRecord site, Ready ready, Observe observe) const {
    if (ready()) return true;
    Deadline deadline(*this, site.peer);
    while (true) {
      if (ready()) return true;
      if (!deadline.pause()) continue;
      if (stopped()) return false;
      if (site.peer != world_.rank && peer_closed(site.peer)) {
        // The peer writes this word last: what it had done before is visible now, so one more look decides.
        if (ready()) return true;
        if (!stopped()) fail({.what = WaitFor::kPeerClosed, .peer = site.peer});
        return false;
      }
      if (deadline.passed()) {
        if (ready()) return true;
        observe(site);
        fail(site);
        return false;
      }
    }
  }

  // The parts of wait(), for waits that a whole warp makes.
  class Deadline {
   public:
    __device__ Deadline(const DeviceWatch& watch, int32_t peer) : begin_(ptx::global_timer_ns()) {
      constexpr int64_t kLongestGrace = 5'000'000'000;
      const int64_t limit = watch.world_.limit_ns;
      limit_ = limit + (peer == watch.world_.rank ? 0 : min64(limit / 4, kLongestGrace));
    }
    // Sleeps; true now and then, when it is time to look at more than what is waited for.
    __device__ bool pause() {
      constexpr uint32_t kShortest = 32, kLongest = 256, kLooks = 64;
      ptx::sleep_ns(sleep_);
      if (looks_ > kLooks / 4)
        sleep_ = kLongest;
      else if (sleep_ < kShortest)
        sleep_ = kShortest;
      return ++looks_ % kLooks == 0;
    }
    __device__ bool passed() const { return static_cast<int64_t>(ptx::global_timer_ns() - begin_) >= limit_; }

   private:
    uint64_t begin_;
    int64_t limit_;
    uint32_t looks_ = 0, sleep_ = 0;
  };

  // True once waits are pointless: this rank has failed, or a peer has reported a failure.
  __device__ bool stopped() const {
    if (!running()) return true;
    return Link::reached(world_.own_word_at(world_.layout.alarm), 1) && adopt();
  }

  __device__ bool peer_closed(int32_t peer) const {
    return Link::reached(world_.own_word(Word::kClosed, peer), 1);  // pairs with the peer's last write
  }

  // Ends the session with `record`, unless it has failed before, and tells the host and the peers.
  __device__ void fail(WaitRecord record) const {
    record.rank = world_.rank;
    record.epoch = world_.control->epoch;
    record.timeout_ns = world_.limit_ns;
    if (!report(record)) return;
    // The rank's own inbox first: for peers that come later, and where messages leave from.
    tell(world_.rank, record);
    for (int32_t peer = 0; peer < world_.world(); ++peer) {
      if (peer != world_.rank) tell(peer, record);
    }
    ptx::store_release_system(world_.own_word_at(world_.layout.ready), RankState::kFailed);
  }

 private:
  // True for the first failure of the session.
  __device__ bool report(const WaitRecord& record) const {
    auto* stopped = reinterpret_cast<unsigned long long*>(&world_.control->stopped);
    if (atomicCAS(stopped, 0ull, 1ull) != 0) return false;
    world_.status->record = record;
    // Release: pairs with the host's acquire in check(); the record is there.
    ptx::store_release_system(&world_.status->failed, 1);
    return true;
  }

  // Writes the record into a part's inbox, and rings.
  __device__ void tell(int32_t peer, const WaitRecord& record) const {
    const int64_t inbox = world_.layout.inbox_offset(world_.rank);
    auto* own = reinterpret_cast<WaitRecord*>(world_.own() + inbox);
    if (peer == world_.rank) *own = record;
    const int64_t word = world_.layout.word_offset(Word::kFailed, world_.rank);
    Link::put_message(world_, peer, inbox, own, sizeof(WaitRecord), word, 1);
    // Several ranks may ring: each sets the same value. It may be there before the word: adopt() looks again then.
    Link::set(world_, peer, world_.layout.alarm, 1);
  }

  // Takes over what a peer has reported; false where it is not there yet.
  __device__ bool adopt() const {
    for (int32_t peer = 0; peer < world_.world(); ++peer) {
      // Acquire: pairs with the release in tell(); the record is there.
      if (!Link::reached(world_.own_word(Word::kFailed, peer), 1)) continue;
      report(*reinterpret_cast<const WaitRecord*>(world_.own() + world_.layout.inbox_offset(peer)));
      return true;
    }
    return false;
  }

  const DeviceWorld& world_;
};

}  // namespace tileoverlap
