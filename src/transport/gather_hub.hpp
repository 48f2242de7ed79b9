#pragma once
// Many exchanges of one rank over one all-gather function.
//
// Sessions and layers of a rank use their exchanges from threads of their own, so ranks may come to the all-gather in
// different orders: rank 0 with a message of layer A, rank 1 with one of layer B. So each message says which exchange
// and round it is of, and each step delivers what it brought to the boards of those. A round of one exchange is one
// step on every rank, so that all ranks make equally many steps, and the rounds that crossed are complete after the
// last of them.

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tileoverlap/transport/mapped.hpp"
#include "transport/board.hpp"

namespace tileoverlap {

// What an exchange is for: the n-th of each kind belongs to the n-th of the other ranks.
enum class ExchangeKind : uint32_t { kAgreement, kMemory, kOpened };

// Thread safe.
class GatherHub : public std::enable_shared_from_this<GatherHub> {
 public:
  GatherHub(int32_t rank, int32_t world, HostAllGather all_gather)
      : rank_(rank), world_(world), all_gather_(std::move(all_gather)) {}

  std::unique_ptr<Exchange> open(ExchangeKind kind);

 private:
  friend class GatheredExchange;
  using Channel = std::pair<ExchangeKind, uint64_t>;

  // One call of all_gather. Throws what it threw, and Error from then on.
  void step(const Channel& channel, uint64_t round, std::span<const std::byte> mine);
  void close(const Channel& channel);

  struct Message {
    Channel channel;
    uint64_t round;
    std::span<const std::byte> body;
  };
  static std::vector<std::byte> encode(const Channel& channel, uint64_t round, std::span<const std::byte> body);
  std::vector<Message> decode(std::span<const std::byte> mine, const std::vector<std::vector<std::byte>>& all) const;
  void deliver(int32_t rank, const Message& message);
  void fail(const std::string& why);

  const int32_t rank_, world_;
  const HostAllGather all_gather_;
  std::mutex gather_mutex_;  // held during all_gather_; taken before mutex_
  std::mutex mutex_;         // for what follows; never held while foreign code runs
  std::map<ExchangeKind, uint64_t> next_;
  std::map<Channel, std::shared_ptr<Board>> boards_;  // open ones, and those that a peer has opened before us
  std::optional<std::string> failure_;                // why no step can be made any more
};

}  // namespace tileoverlap
