#include "transport/gather_hub.hpp"

#include <algorithm>
#include <cstring>
#include <exception>

#include "core/text.hpp"

namespace tileoverlap {
namespace {

// In front of each message. All ranks run on machines of one byte order.
struct Header {
  uint64_t magic = kMagic;
  uint64_t kind = 0, number = 0, round = 0;

  static constexpr uint64_t kMagic = 0x7470616c72657674;
};

// Errors that come from Python bring the traceback along; what went wrong is said last.
std::string last_line(std::string message) {
  const size_t last = message.find_last_not_of('\n');
  message.resize(last == std::string::npos ? 0 : last + 1);
  const size_t end = message.find_last_of('\n');
  return end == std::string::npos ? message : message.substr(end + 1);
}

}  // namespace

class GatheredExchange final : public Exchange {
 public:
  GatheredExchange(std::shared_ptr<GatherHub> hub, GatherHub::Channel channel, std::shared_ptr<Board> board)
      : hub_(std::move(hub)), channel_(channel), board_(std::move(board)) {}
  ~GatheredExchange() override { hub_->close(channel_); }

  std::vector<std::vector<std::byte>> all_gather(std::span<const std::byte> mine, int64_t limit_ns,
                                                 const std::function<bool(int32_t)>& cancelled) override {
    hub_->step(channel_, ++round_, mine);
    return board_->collect(round_, hub_->rank_, limit_ns, cancelled);
  }
  void post(std::span<const std::byte> mine) override {
    hub_->step(channel_, ++round_, mine);
    board_->leave(round_);
  }

 private:
  const std::shared_ptr<GatherHub> hub_;
  const GatherHub::Channel channel_;
  const std::shared_ptr<Board> board_;
  uint64_t round_ = 0;
};

std::unique_ptr<Exchange> GatherHub::open(ExchangeKind kind) {
  std::shared_ptr<Board> board;
  Channel channel;
  {
    const std::scoped_lock lock(mutex_);
    channel = {kind, next_[kind]++};
    std::shared_ptr<Board>& slot = boards_[channel];
    if (slot == nullptr) slot = std::make_shared<Board>(world_, 1);
    board = slot;
  }
  return std::make_unique<GatheredExchange>(shared_from_this(), channel, std::move(board));
}

void GatherHub::close(const Channel& channel) {
  const std::scoped_lock lock(mutex_);
  boards_.erase(channel);
}

void GatherHub::step(const Channel& channel, uint64_t round, std::span<const std::byte> mine) {
  const std::vector<std::byte> message = encode(channel, round, mine);
  const std::scoped_lock one_at_a_time(gather_mutex_);
  {
    const std::scoped_lock lock(mutex_);
    if (failure_) throw Error(text("rank ", rank_, " has no host exchange any more: ", *failure_));
  }
  try {
    const std::vector<std::vector<std::byte>> all = all_gather_(message);
    const std::vector<Message> messages = decode(message, all);
    for (int32_t rank = 0; rank < world_; ++rank) deliver(rank, messages[static_cast<size_t>(rank)]);
  } catch (const std::exception& error) {
    fail(last_line(error.what()));
    throw;
  } catch (...) {
    fail("all_gather threw what is no std::exception");
    throw;
  }
}

std::vector<std::byte> GatherHub::encode(const Channel& channel, uint64_t round, std::span<const std::byte> body) {
  const Header header{.kind = static_cast<uint64_t>(channel.first), .number = channel.second, .round = round};
  std::vector<std::byte> message(sizeof(header) + body.size());
  std::memcpy(message.data(), &header, sizeof(header));
  std::copy(body.begin(), body.end(), message.begin() + sizeof(header));
  return message;
}

std::vector<GatherHub::Message> GatherHub::decode(std::span<const std::byte> mine,
                                                  const std::vector<std::vector<std::byte>>& all) const {
  if (all.size() != static_cast<size_t>(world_)) {
    throw Error(text("all_gather of rank ", rank_, " must return ", world_, " messages, one a rank, got ", all.size()));
  }
  const std::vector<std::byte>& returned = all[static_cast<size_t>(rank_)];
  if (!std::equal(mine.begin(), mine.end(), returned.begin(), returned.end())) {
    throw Error(text("all_gather of rank ", rank_, " must return the messages by rank, but number ", rank_,
                     " is not the one that this rank gave"));
  }
  std::vector<Message> messages;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    Header header;
    if (all[rank].size() >= sizeof(header)) std::memcpy(&header, all[rank].data(), sizeof(header));
    if (all[rank].size() < sizeof(header) || header.magic != Header::kMagic ||
        header.kind > static_cast<uint64_t>(ExchangeKind::kOpened)) {
      throw Error(text("all_gather of rank ", rank_, " returned ", all[rank].size(), " bytes as the message of rank ",
                       rank, " that are not from this library: other calls get between"));
    }
    messages.push_back({.channel = {static_cast<ExchangeKind>(header.kind), header.number},
                        .round = header.round,
                        .body = std::span(all[rank]).subspan(sizeof(header))});
  }
  return messages;
}

void GatherHub::deliver(int32_t rank, const Message& message) {
  std::shared_ptr<Board> board;
  {
    const std::scoped_lock lock(mutex_);
    const auto found = boards_.find(message.channel);
    if (found != boards_.end()) {
      board = found->second;
    } else if (message.channel.second >= next_[message.channel.first]) {
      board = boards_[message.channel] = std::make_shared<Board>(world_, 1);
    }
  }
  if (board != nullptr) board->put(message.round, rank, message.body);  // else this rank has closed the exchange
}

void GatherHub::fail(const std::string& why) {
  const std::scoped_lock lock(mutex_);
  failure_ = why;
  // Rounds that wait for a peer's later step wait in vain.
  for (const auto& [channel, board] : boards_) board->give_up({.what = WaitFor::kError, .rank = rank_, .peer = rank_});
}

}  // namespace tileoverlap
