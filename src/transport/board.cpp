#include "transport/board.hpp"

#include <algorithm>
#include <chrono>

namespace tileoverlap {

void Board::put(uint64_t round, int32_t rank, std::span<const std::byte> message) {
  const std::scoped_lock lock(mutex_);
  if (round <= forgotten_) return;
  Round& entered = enter(round);
  entered.messages[static_cast<size_t>(rank)].assign(message.begin(), message.end());
  entered.posted[static_cast<size_t>(rank)] = true;
  changed_.notify_all();
}

std::vector<std::vector<std::byte>> Board::collect(uint64_t round, int32_t rank, int64_t limit_ns,
                                                   const std::function<bool(int32_t)>& cancelled) {
  const auto begin = std::chrono::steady_clock::now();
  std::unique_lock lock(mutex_);
  Round& entered = enter(round);
  while (true) {
    const auto missing = std::find(entered.posted.begin(), entered.posted.end(), false);
    if (missing == entered.posted.end()) break;
    if (broken_) throw WaitTimeout(*broken_, rank);
    const auto peer = static_cast<int32_t>(missing - entered.posted.begin());
    const WaitRecord record{
        .what = WaitFor::kCounts, .rank = rank, .peer = peer, .epoch = round, .timeout_ns = limit_ns};
    if (cancelled) {
      lock.unlock();
      const bool stop = cancelled(peer);
      lock.lock();
      // The peer may have posted, and then closed, while it was asked about.
      if (stop && !entered.posted[static_cast<size_t>(peer)]) return {};
    }
    if (std::chrono::steady_clock::now() - begin >= std::chrono::nanoseconds(limit_ns)) {
      give_up_locked(record);
      throw WaitTimeout(record, rank);
    }
    constexpr auto kAskAgain = std::chrono::milliseconds(5);
    changed_.wait_for(lock, std::min<std::chrono::nanoseconds>(kAskAgain, std::chrono::nanoseconds(limit_ns)));
  }
  auto messages = entered.messages;
  leave_locked(round);
  return messages;
}

void Board::leave(uint64_t round) {
  const std::scoped_lock lock(mutex_);
  leave_locked(round);
}

void Board::give_up(const WaitRecord& why) {
  const std::scoped_lock lock(mutex_);
  give_up_locked(why);
}

Board::Round& Board::enter(uint64_t number) {
  Round& round = rounds_[number];
  round.messages.resize(static_cast<size_t>(world_));
  round.posted.resize(static_cast<size_t>(world_));
  return round;
}

void Board::leave_locked(uint64_t number) {
  if (++enter(number).left < readers_) return;
  rounds_.erase(number);
  forgotten_ = std::max(forgotten_, number);
}

void Board::give_up_locked(const WaitRecord& why) {
  if (!broken_) broken_ = why;
  changed_.notify_all();
}

}  // namespace tileoverlap
