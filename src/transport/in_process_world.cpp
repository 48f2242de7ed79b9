#include "transport/in_process_world.hpp"

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <utility>

#include "core/text.hpp"
#include "transport/board.hpp"
#include "transport/device_text.hpp"
#include "transport/launch_turns.hpp"
#include "transport/same_terms.hpp"

namespace tileoverlap {
namespace {

class InProcessExchange final : public Exchange {
 public:
  InProcessExchange(std::shared_ptr<Board> board, int32_t rank) : board_(std::move(board)), rank_(rank) {}

  std::vector<std::vector<std::byte>> all_gather(std::span<const std::byte> mine, int64_t limit_ns,
                                                 const std::function<bool(int32_t)>& cancelled) override {
    board_->put(++round_, rank_, mine);
    return board_->collect(round_, rank_, limit_ns, cancelled);
  }
  void post(std::span<const std::byte> mine) override {
    board_->put(++round_, rank_, mine);
    board_->leave(round_);
  }

 private:
  std::shared_ptr<Board> board_;
  int32_t rank_;
  uint64_t round_ = 0;
};

// The parts of all ranks. Every rank's handle keeps all parts: a peer may write its last credit into the memory of a
// rank that has let go of it already.
struct Allocation {
  Allocation(std::string agreed_terms, size_t part_bytes, int32_t rank, int32_t world, bool take_turns)
      : terms(std::move(agreed_terms)),
        bytes(part_bytes),
        first_rank(rank),
        owned(static_cast<size_t>(world)),
        parts(static_cast<size_t>(world)),
        board(std::make_shared<Board>(world, world)),
        turns(take_turns ? std::make_unique<LaunchTurns>(world) : nullptr) {}

  const std::string terms;
  const size_t bytes;
  const int32_t first_rank;
  std::vector<std::shared_ptr<std::byte>> owned;
  std::vector<std::atomic<std::byte*>> parts;
  const std::shared_ptr<Board> board;
  const std::unique_ptr<LaunchTurns> turns;
  // A rank has let go before all had joined: nobody joins any more. Guarded by the world's mutex, as the counts are.
  bool abandoned = false;
  int32_t joined = 0, held = 0;
};

class World : public std::enable_shared_from_this<World> {
 public:
  World(std::string name, std::vector<DLDevice> devices, PartAllocator allocate_part, bool take_turns)
      : name_(std::move(name)),
        devices_(std::move(devices)),
        allocate_part_(std::move(allocate_part)),
        take_turns_(take_turns),
        world_(static_cast<int32_t>(devices_.size())),
        next_allocation_(devices_.size()),
        next_board_(devices_.size()) {}

  const std::string& name() const { return name_; }
  int32_t world() const { return world_; }
  DLDevice device(int32_t rank) const { return devices_[static_cast<size_t>(rank)]; }
  int32_t ranks_on(DLDevice device) const {
    return static_cast<int32_t>(std::count_if(devices_.begin(), devices_.end(), [&](DLDevice other) {
      return other.device_type == device.device_type && other.device_id == device.device_id;
    }));
  }
  std::shared_ptr<SymmetricMemory> allocate(int32_t rank, const std::string& terms, size_t bytes);
  void let_go(Allocation& allocation);

  std::unique_ptr<Exchange> open_exchange(int32_t rank) {
    const std::scoped_lock lock(mutex_);
    const uint64_t number = next_board_[static_cast<size_t>(rank)];
    auto& [board, joined] = boards_[number];
    if (board == nullptr) board = std::make_shared<Board>(world_, world_);
    auto exchange = std::make_unique<InProcessExchange>(board, rank);
    ++next_board_[static_cast<size_t>(rank)];
    if (++joined == world_) boards_.erase(number);
    return exchange;
  }

 private:
  const std::string name_;
  const std::vector<DLDevice> devices_;  // by rank
  const PartAllocator allocate_part_;
  const bool take_turns_;
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
        exchange_(allocation_->board, rank) {}
  ~InProcessMemory() override {
    if (allocation_->turns != nullptr) allocation_->turns->leave(rank_);
    world_->let_go(*allocation_);
  }
  std::byte* local() const override { return peer(rank_); }
  std::byte* peer(int32_t rank) const override {
    // Pairs with the release in World::allocate: the zeroes are there before the pointer is seen.
    return allocation_->parts[static_cast<size_t>(rank)].load(std::memory_order_acquire);
  }
  size_t bytes() const override { return allocation_->bytes; }
  Exchange& exchange() const override { return exchange_; }
  LaunchTurns* launch_turns() const override { return allocation_->turns.get(); }

 private:
  std::shared_ptr<World> world_;
  std::shared_ptr<Allocation> allocation_;
  int32_t rank_;
  mutable InProcessExchange exchange_;
};

std::shared_ptr<SymmetricMemory> World::allocate(int32_t rank, const std::string& terms, size_t bytes) {
  std::shared_ptr<std::byte> memory = allocate_part_(rank, bytes);
  std::shared_ptr<InProcessMemory> handle;  // declared before the lock, which its destructor takes
  const std::scoped_lock lock(mutex_);
  const auto index = static_cast<size_t>(rank);
  uint64_t number = next_allocation_[index];
  while (allocations_.contains(number) && allocations_[number]->abandoned) ++number;
  std::shared_ptr<Allocation> allocation = allocations_.contains(number) ? allocations_[number] : nullptr;
  if (allocation == nullptr) allocation = std::make_shared<Allocation>(terms, bytes, rank, world_, take_turns_);
  check_same_terms({.rank = rank, .terms = terms, .bytes = bytes},
                   {.rank = allocation->first_rank, .terms = allocation->terms, .bytes = allocation->bytes});
  handle = std::make_shared<InProcessMemory>(shared_from_this(), allocation, rank);
  ++allocation->held;
  allocations_[number] = allocation;
  allocation->owned[index] = std::move(memory);
  allocation->parts[index].store(allocation->owned[index].get(), std::memory_order_release);
  next_allocation_[index] = number + 1;
  if (++allocation->joined == world_) allocations_.erase(number);  // from here on the handles keep it
  return handle;
}

void World::let_go(Allocation& allocation) {
  std::vector<std::shared_ptr<std::byte>> unused;  // freed without the lock
  const std::scoped_lock lock(mutex_);
  if (allocation.joined < world_) allocation.abandoned = true;
  // The world remembers an abandoned allocation, for ranks that have to pass it over, but not its memory.
  if (--allocation.held == 0 && allocation.abandoned) unused.swap(allocation.owned);
}

class InProcessTransport final : public Transport {
 public:
  InProcessTransport(std::shared_ptr<World> world, int32_t rank) : world_(std::move(world)), rank_(rank) {}
  int32_t world() const override { return world_->world(); }
  int32_t rank() const override { return rank_; }
  DLDevice device() const override { return world_->device(rank_); }
  int32_t ranks_on_device() const override { return world_->ranks_on(device()); }
  std::shared_ptr<SymmetricMemory> allocate(const std::string& terms, size_t bytes) override {
    return world_->allocate(rank_, terms, bytes);
  }
  std::unique_ptr<Exchange> open_exchange() override { return world_->open_exchange(rank_); }
  std::string repr() const override {
    const std::string where = device().device_type == kDLCPU ? "" : ", " + device_text(device());
    return text(world_->name(), "(rank=", rank_, " of ", world(), where, ")");
  }

 private:
  std::shared_ptr<World> world_;
  int32_t rank_;
};

}  // namespace

std::vector<std::shared_ptr<Transport>> make_world_transports(std::string name, std::vector<DLDevice> devices,
                                                              PartAllocator allocate_part, bool take_turns) {
  const auto world = static_cast<int32_t>(devices.size());
  auto shared = std::make_shared<World>(std::move(name), std::move(devices), std::move(allocate_part), take_turns);
  std::vector<std::shared_ptr<Transport>> transports;
  for (int32_t rank = 0; rank < world; ++rank) transports.push_back(std::make_shared<InProcessTransport>(shared, rank));
  return transports;
}

}  // namespace tileoverlap
