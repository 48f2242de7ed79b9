#include "tileoverlap/transport/in_process.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <sstream>
#include <utility>

#include "core/text.hpp"
#include "core/zeroed_bytes.hpp"

namespace tileoverlap {
namespace {

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
  std::optional<WaitRecord> broken;  // why rounds that are not complete never will be
};

class InProcessExchange final : public Exchange {
 public:
  InProcessExchange(std::shared_ptr<Board> board, int32_t rank, int32_t world)
      : board_(std::move(board)), rank_(rank), world_(world) {}

  std::vector<std::vector<std::byte>> all_gather(std::span<const std::byte> mine, int64_t limit_ns,
                                                 const std::function<bool(int32_t)>& cancelled) override {
    const auto begin = std::chrono::steady_clock::now();
    std::unique_lock lock(board_->mutex);
    const uint64_t number = ++round_;
    Board::Round& round = enter(number, mine);
    while (true) {
      const auto missing = std::find(round.posted.begin(), round.posted.end(), false);
      if (missing == round.posted.end()) break;
      if (board_->broken) throw WaitTimeout(*board_->broken, rank_);
      const auto peer = static_cast<int32_t>(missing - round.posted.begin());
      const WaitRecord record{
          .what = WaitFor::kCounts, .rank = rank_, .peer = peer, .epoch = number, .timeout_ns = limit_ns};
      if (cancelled) {
        lock.unlock();
        const bool give_up = cancelled(peer);
        lock.lock();
        // The peer may have posted, and then closed, while it was asked about.
        if (give_up && !round.posted[static_cast<size_t>(peer)]) return {};
      }
      if (std::chrono::steady_clock::now() - begin >= std::chrono::nanoseconds(limit_ns)) {
        give_up_all(record);
        throw WaitTimeout(record, rank_);
      }
      constexpr auto kAskAgain = std::chrono::milliseconds(5);
      board_->changed.wait_for(lock, std::min<std::chrono::nanoseconds>(kAskAgain, std::chrono::nanoseconds(limit_ns)));
    }
    auto messages = round.messages;
    leave(number, round);
    return messages;
  }

  void post(std::span<const std::byte> mine) override {
    const std::scoped_lock lock(board_->mutex);
    const uint64_t number = ++round_;
    leave(number, enter(number, mine));
  }

 private:
  // With the board's mutex held. References into a map stay valid while others are inserted.
  Board::Round& enter(uint64_t number, std::span<const std::byte> mine) {
    Board::Round& round = board_->rounds[number];
    round.messages.resize(static_cast<size_t>(world_));
    round.posted.resize(static_cast<size_t>(world_));
    round.messages[static_cast<size_t>(rank_)].assign(mine.begin(), mine.end());
    round.posted[static_cast<size_t>(rank_)] = true;
    board_->changed.notify_all();
    return round;
  }

  void leave(uint64_t number, Board::Round& round) {
    if (++round.readers == world_) board_->rounds.erase(number);
  }

  // A rank that left a round leaves the others' sequences out of step with its own.
  void give_up_all(const WaitRecord& record) {
    if (!board_->broken) board_->broken = record;
    board_->changed.notify_all();
  }

  std::shared_ptr<Board> board_;
  int32_t rank_, world_;
  uint64_t round_ = 0;
};

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
  const std::shared_ptr<Board> board = std::make_shared<Board>();
  // A rank has let go before all had joined: nobody joins any more. Guarded by the world's mutex, as `joined` is.
  bool abandoned = false;
  int32_t joined = 0;
};

// "max_tokens=64 (rank 1) against max_tokens=32 (rank 0)", from two lists of words that are equal but for some. Lists
// that differ in their first word are of different kinds: nothing else is compared.
std::string differences(const std::string& mine, int32_t rank, const std::string& theirs, int32_t other) {
  std::istringstream left(mine), right(theirs);
  std::string result, a, b;
  bool first = true;
  while (left >> a && right >> b) {
    if (a != b) result += text(result.empty() ? "" : ", ", a, " (rank ", rank, ") against ", b, " (rank ", other, ")");
    if (std::exchange(first, false) && a != b) break;
  }
  return result.empty() ? text("'", mine, "' (rank ", rank, ") against '", theirs, "' (rank ", other, ")") : result;
}

class World : public std::enable_shared_from_this<World> {
 public:
  explicit World(int32_t world)
      : world_(world), next_allocation_(static_cast<size_t>(world)), next_board_(next_allocation_) {}

  int32_t world() const { return world_; }
  std::shared_ptr<SymmetricMemory> allocate(int32_t rank, const std::string& terms, size_t bytes);
  void let_go(Allocation& allocation);

  std::unique_ptr<Exchange> open_exchange(int32_t rank) {
    const std::scoped_lock lock(mutex_);
    const uint64_t number = next_board_[static_cast<size_t>(rank)];
    auto& [board, joined] = boards_[number];
    if (board == nullptr) board = std::make_shared<Board>();
    auto exchange = std::make_unique<InProcessExchange>(board, rank, world_);
    ++next_board_[static_cast<size_t>(rank)];
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

class InProcessMemory final : public SymmetricMemory {
 public:
  InProcessMemory(std::shared_ptr<World> world, std::shared_ptr<Allocation> allocation, int32_t rank)
      : world_(std::move(world)),
        allocation_(std::move(allocation)),
        rank_(rank),
        exchange_(allocation_->board, rank, world_->world()) {}
  ~InProcessMemory() override { world_->let_go(*allocation_); }
  std::byte* local() const override { return peer(rank_); }
  std::byte* peer(int32_t rank) const override {
    // Pairs with the release in World::allocate: the zeroes are there before the pointer is seen.
    return allocation_->parts[static_cast<size_t>(rank)].load(std::memory_order_acquire);
  }
  size_t bytes() const override { return allocation_->bytes; }
  Exchange& exchange() const override { return exchange_; }

 private:
  std::shared_ptr<World> world_;
  std::shared_ptr<Allocation> allocation_;
  int32_t rank_;
  mutable InProcessExchange exchange_;
};

std::shared_ptr<SymmetricMemory> World::allocate(int32_t rank, const std::string& terms, size_t bytes) {
  ZeroedBytes memory;
  try {
    memory = zeroed_bytes(bytes);
  } catch (const std::bad_alloc&) {
    throw Error(text("rank ", rank, " cannot allocate ", bytes, " bytes of shared memory"));
  }
  std::shared_ptr<InProcessMemory> handle;  // declared before the lock, which its destructor takes
  const std::scoped_lock lock(mutex_);
  const auto index = static_cast<size_t>(rank);
  uint64_t number = next_allocation_[index];
  while (allocations_.contains(number) && allocations_[number]->abandoned) ++number;
  std::shared_ptr<Allocation> allocation = allocations_.contains(number) ? allocations_[number] : nullptr;
  if (allocation == nullptr) allocation = std::make_shared<Allocation>(terms, bytes, rank, world_);
  if (terms != allocation->terms || bytes != allocation->bytes) {
    throw InvalidArgument(text("all ranks must prepare with the same options: ",
                               terms == allocation->terms
                                   ? text(bytes, " bytes (rank ", rank, ") against ", allocation->bytes,
                                          " bytes (rank ", allocation->first_rank, ")")
                                   : differences(terms, rank, allocation->terms, allocation->first_rank)));
  }
  handle = std::make_shared<InProcessMemory>(shared_from_this(), allocation, rank);
  allocations_[number] = allocation;
  allocation->owned[index] = std::move(memory);
  allocation->parts[index].store(allocation->owned[index].get(), std::memory_order_release);
  next_allocation_[index] = number + 1;
  if (++allocation->joined == world_) allocations_.erase(number);  // from here on the handles keep it
  return handle;
}

void World::let_go(Allocation& allocation) {
  const std::scoped_lock lock(mutex_);
  if (allocation.joined < world_) allocation.abandoned = true;
}

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
