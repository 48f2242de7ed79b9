#include "tileoverlap/transport/in_process.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <sstream>

#include "core/text.hpp"
#include "core/zeroed_bytes.hpp"

namespace tileoverlap {
namespace {

// The parts of all ranks. Every rank's handle keeps all parts: a peer may write its last credit into the memory of a
// rank that has let go of it already.
struct Allocation {
  Allocation(std::string agreed_terms, size_t part_bytes, int32_t rank, int32_t world)
      : terms(std::move(agreed_terms)),
        bytes(part_bytes),
        first_rank(rank),
        owned(static_cast<size_t>(world)),
        parts(static_cast<size_t>(world)) {}

  const std::string terms;
  const size_t bytes;
  const int32_t first_rank;
  std::vector<ZeroedBytes> owned;
  std::vector<std::atomic<std::byte*>> parts;
};

class InProcessMemory final : public SymmetricMemory {
 public:
  InProcessMemory(std::shared_ptr<Allocation> allocation, int32_t rank)
      : allocation_(std::move(allocation)), rank_(rank) {}
  std::byte* local() const override { return peer(rank_); }
  std::byte* peer(int32_t rank) const override {
    // Pairs with the release in World::allocate: the zeroes are there before the pointer is seen.
    return allocation_->parts[static_cast<size_t>(rank)].load(std::memory_order_acquire);
  }
  size_t bytes() const override { return allocation_->bytes; }

 private:
  std::shared_ptr<Allocation> allocation_;
  int32_t rank_;
};

// The rounds of one exchange, shared by its ranks.
struct Board {
  struct Round {
    std::vector<std::vector<std::byte>> messages;
    std::vector<bool> posted;
    int32_t readers = 0;
  };
  std::mutex mutex;
  std::condition_variable changed;
  std::map<uint64_t, Round> rounds;  // those that some rank has not read yet
};

class InProcessExchange final : public Exchange {
 public:
  InProcessExchange(std::shared_ptr<Board> board, int32_t rank, int32_t world)
      : board_(std::move(board)), rank_(rank), world_(world) {}

  std::vector<std::vector<std::byte>> all_gather(std::span<const std::byte> mine, int64_t limit_ns,
                                                 const std::function<bool(int32_t)>& cancelled) override {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::nanoseconds(limit_ns);
    std::unique_lock lock(board_->mutex);
    const uint64_t number = ++round_;
    Board::Round& round = board_->rounds[number];  // references into a map stay valid while others are inserted
    round.messages.resize(static_cast<size_t>(world_));
    round.posted.resize(static_cast<size_t>(world_));
    round.messages[static_cast<size_t>(rank_)].assign(mine.begin(), mine.end());
    round.posted[static_cast<size_t>(rank_)] = true;
    board_->changed.notify_all();
    while (true) {
      const auto missing = std::find(round.posted.begin(), round.posted.end(), false);
      if (missing == round.posted.end()) break;
      const auto peer = static_cast<int32_t>(missing - round.posted.begin());
      if (cancelled) {
        lock.unlock();
        const bool give_up = cancelled(peer);
        lock.lock();
        // The peer may have posted, and then closed, while it was asked about.
        if (give_up && !round.posted[static_cast<size_t>(peer)]) return {};
      }
      if (std::chrono::steady_clock::now() >= deadline) {
        throw WaitTimeout({.what = WaitFor::kCounts,
                           .rank = rank_,
                           .peer = peer,
                           .epoch = number,
                           .timeout_ns = limit_ns},
                          rank_);
      }
      constexpr auto kAskAgain = std::chrono::milliseconds(5);
      board_->changed.wait_until(lock, std::min(deadline, std::chrono::steady_clock::now() + kAskAgain));
    }
    auto messages = round.messages;
    if (++round.readers == world_) board_->rounds.erase(number);
    return messages;
  }

 private:
  std::shared_ptr<Board> board_;
  int32_t rank_, world_;
  uint64_t round_ = 0;
};

// "max_tokens=64 (rank 1) against max_tokens=32 (rank 0)", from two lists of words that are equal but for some.
std::string differences(const std::string& mine, int32_t rank, const std::string& theirs, int32_t other) {
  std::istringstream left(mine), right(theirs);
  std::string result, a, b;
  while (left >> a && right >> b) {
    if (a != b) result += text(result.empty() ? "" : ", ", a, " (rank ", rank, ") against ", b, " (rank ", other, ")");
  }
  return result.empty() ? text("'", mine, "' (rank ", rank, ") against '", theirs, "' (rank ", other, ")") : result;
}

class World {
 public:
  explicit World(int32_t world) : world_(world), next_allocation_(static_cast<size_t>(world)), next_board_(next_allocation_) {}

  int32_t world() const { return world_; }

  std::shared_ptr<SymmetricMemory> allocate(int32_t rank, const std::string& terms, size_t bytes) {
    const std::scoped_lock lock(mutex_);
    const uint64_t number = next_allocation_[static_cast<size_t>(rank)];
    auto& slot = allocations_[number];
    if (slot == nullptr) slot = std::make_shared<Allocation>(terms, bytes, rank, world_);
    if (terms != slot->terms || bytes != slot->bytes) {
      throw InvalidArgument(text("all ranks must prepare with the same options: ",
                                 terms == slot->terms
                                     ? text(bytes, " bytes (rank ", rank, ") against ", slot->bytes, " bytes (rank ",
                                            slot->first_rank, ")")
                                     : differences(terms, rank, slot->terms, slot->first_rank)));
    }
    const std::shared_ptr<Allocation> allocation = slot;
    const auto index = static_cast<size_t>(rank);
    allocation->owned[index] = zeroed_bytes(bytes);
    allocation->parts[index].store(allocation->owned[index].get(), std::memory_order_release);
    ++next_allocation_[index];
    if (std::ranges::all_of(allocation->owned, [](const ZeroedBytes& part) { return part != nullptr; })) {
      allocations_.erase(number);  // from here on the handles keep it
    }
    return std::make_shared<InProcessMemory>(allocation, rank);
  }

  std::unique_ptr<Exchange> open_exchange(int32_t rank) {
    const std::scoped_lock lock(mutex_);
    const uint64_t number = next_board_[static_cast<size_t>(rank)]++;
    auto& [board, joined] = boards_[number];
    if (board == nullptr) board = std::make_shared<Board>();
    auto exchange = std::make_unique<InProcessExchange>(board, rank, world_);
    if (++joined == world_) boards_.erase(number);
    return exchange;
  }

 private:
  const int32_t world_;
  std::mutex mutex_;
  std::vector<uint64_t> next_allocation_, next_board_;           // by rank
  std::map<uint64_t, std::shared_ptr<Allocation>> allocations_;  // those that some rank has not joined yet
  std::map<uint64_t, std::pair<std::shared_ptr<Board>, int32_t>> boards_;
};

class InProcessTransport final : public Transport {
 public:
  InProcessTransport(std::shared_ptr<World> world, int32_t rank) : world_(std::move(world)), rank_(rank) {}
  int32_t world() const override { return world_->world(); }
  int32_t rank() const override { return rank_; }
  std::shared_ptr<SymmetricMemory> allocate(const std::string& terms, size_t bytes) override {
    return world_->allocate(rank_, terms, bytes);
  }
  std::unique_ptr<Exchange> open_exchange() override { return world_->open_exchange(rank_); }
  std::string repr() const override { return text("InProcessTransport(rank=", rank_, " of ", world(), ")"); }

 private:
  std::shared_ptr<World> world_;
  int32_t rank_;
};

}  // namespace

std::vector<std::shared_ptr<Transport>> make_in_process_world(int32_t world) {
  if (world < 1) throw InvalidArgument(text("world must be at least 1, got ", world));
  auto shared = std::make_shared<World>(world);
  std::vector<std::shared_ptr<Transport>> transports;
  for (int32_t rank = 0; rank < world; ++rank) transports.push_back(std::make_shared<InProcessTransport>(shared, rank));
  return transports;
}

}  // namespace tileoverlap
