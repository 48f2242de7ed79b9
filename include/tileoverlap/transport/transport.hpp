#pragma once
// How ranks reach each other: symmetric memory for data and counters, and a small host exchange for set-up.

#include <dlpack/dlpack.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tileoverlap/core/error.hpp"
#include "tileoverlap/routing/counts.hpp"

namespace tileoverlap {

// A sequence of all-gathers of small host messages, for counts and agreement. One thread a rank.
class TILEOVERLAP_API Exchange {
 public:
  virtual ~Exchange() = default;
  // Gives `mine` to all ranks and goes on without their messages. A step like all_gather: the n-th of each rank.
  virtual void post(std::span<const std::byte> mine) = 0;
  // Gives `mine` to all ranks and returns all ranks' messages, by rank. The n-th call of each rank belongs to the
  // n-th of the others. Throws WaitTimeout (kCounts, naming the first rank that is missing) after `limit_ns`, and
  // from then on for all ranks: the sequences are out of step. Returns an empty vector as soon as
  // `cancelled(missing)`, asked now and then while `missing` is the first rank without a message, says so; this rank
  // must not use the exchange again.
  virtual std::vector<std::vector<std::byte>> all_gather(std::span<const std::byte> mine, int64_t limit_ns,
                                                         const std::function<bool(int32_t)>& cancelled = {}) = 0;
};

class LaunchTurns;  // internal
struct RemoteLink;  // internal

// One allocation on every rank, of equal size, zeroed, and an exchange that goes with it. Owned by the ranks that
// hold it.
class TILEOVERLAP_API SymmetricMemory {
 public:
  virtual ~SymmetricMemory() = default;
  virtual std::byte* local() const = 0;
  // The peer's memory mapped into this process; null while the peer has not allocated its part yet, and where only the
  // transport's remote link reaches it.
  virtual std::byte* peer(int32_t rank) const = 0;
  virtual size_t bytes() const = 0;
  virtual Exchange& exchange() const = 0;
  // How ranks of one process take turns with launches where CUDA makes each launch wait for its kernel; null: they need
  // not.
  virtual LaunchTurns* launch_turns() const { return nullptr; }
};

// One rank's handle. Thread safe. Calls marked *collective by order* must be made by all ranks in the same order;
// they do not wait, so that one thread can make them for several ranks in turn.
class TILEOVERLAP_API Transport {
 public:
  virtual ~Transport() = default;
  virtual int32_t world() const = 0;
  virtual int32_t rank() const = 0;
  // Where this rank's symmetric memory lies.
  virtual DLDevice device() const { return {kDLCPU, 0}; }
  // How many ranks of this world, this one included, share device(): executors share its processors among them.
  virtual int32_t ranks_on_device() const { return 1; }
  // Collective by order. `terms` says what the ranks must agree on ("max_tokens=64 top_k=2 ..."); where it or
  // `bytes` differs from an earlier rank's, InvalidArgument names both ranks and both values. A call that throws is
  // not a step of the order; an allocation that some rank has let go before all had joined is passed over, so that
  // ranks can correct themselves.
  virtual std::shared_ptr<SymmetricMemory> allocate(const std::string& terms, size_t bytes) = 0;
  // Collective by order.
  virtual std::unique_ptr<Exchange> open_exchange() = 0;
  // How kernels reach the peers; null: all memory is mapped, SymmetricMemory::peer() says where.
  virtual const RemoteLink* remote_link() const { return nullptr; }
  virtual std::string repr() const = 0;
};

// Counts this rank's ids and gathers the matrix from all ranks: a collective call that waits for the others, one
// thread or process a rank (ranks of one process under one thread use count_routes).
// Errors: as count_ids, on the rank that has them, and CallRefused naming it on all others; WaitTimeout after
// `limit_ns` (0: TILEOVERLAP_TIMEOUT_S).
TILEOVERLAP_API RouteCounts gather_counts(Exchange& exchange, const Placement& placement, int32_t rank,
                                          const TensorArg& topk_ids, int64_t limit_ns = 0);

}  // namespace tileoverlap
