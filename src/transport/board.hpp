#pragma once
// Where the messages of one exchange lie until all who want them have read them.

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "tileoverlap/core/error.hpp"

namespace tileoverlap {

// Thread safe. Rounds count from 1; each reader leaves its rounds in order.
class Board {
 public:
  // A round is forgotten once `readers` ranks have left it; what is put into it later is dropped.
  Board(int32_t world, int32_t readers) : world_(world), readers_(readers) {}

  void put(uint64_t round, int32_t rank, std::span<const std::byte> message);
  // Waits until all ranks' messages of the round are there, returns them and leaves the round. `rank` is the one that
  // waits; limit, `cancelled` and what is thrown are those of Exchange::all_gather.
  std::vector<std::vector<std::byte>> collect(uint64_t round, int32_t rank, int64_t limit_ns,
                                              const std::function<bool(int32_t)>& cancelled);
  void leave(uint64_t round);
  // Rounds that are not complete never will be, because of `why`: a rank that left a round leaves the others'
  // sequences out of step with its own.
  void give_up(const WaitRecord& why);

 private:
  struct Round {
    std::vector<std::vector<std::byte>> messages;
    std::vector<bool> posted;
    int32_t left = 0;
  };

  // With the mutex held. References into a map stay valid while others are inserted.
  Round& enter(uint64_t number);
  void leave_locked(uint64_t number);
  void give_up_locked(const WaitRecord& why);

  const int32_t world_, readers_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<uint64_t, Round> rounds_;  // those that some reader has not left yet
  uint64_t forgotten_ = 0;            // the last round that all readers have left
  std::optional<WaitRecord> broken_;  // why rounds that are not complete never will be
};

}  // namespace tileoverlap
