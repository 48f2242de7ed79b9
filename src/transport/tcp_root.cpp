#include <algorithm>
#include <optional>

#include "core/text.hpp"
#include "transport/frame_stream.hpp"
#include "transport/store_file.hpp"
#include "transport/tcp_side.hpp"

namespace tileoverlap {
namespace {

class TcpRoot final : public TcpSide {
 public:
  TcpRoot(int32_t world, TcpPlace place) : world_(world), place_(std::move(place)), ranks_(static_cast<size_t>(world)) {
    ranks_[0].arrived = true;
  }

  void connect(const BoundedPoll& limit) override {
    open();
    while (first_missing() < world_) {
      poll_all(0, limit);
      while (true) {
        Socket socket = accept_visitor(listener_);
        if (!socket.is_open()) break;
        visitors_.emplace_back(std::move(socket), kMostMessageBytes);
      }
      std::erase_if(visitors_, [this](FrameStream& visitor) { return greet(visitor); });
    }
    visitors_.clear();
    listener_ = {};
    file_.reset();
    send_all(0, std::make_shared<const Bytes>(), limit);
  }

  std::vector<Bytes> gather(uint64_t step, std::span<const std::byte> mine, const BoundedPoll& limit) override {
    for (Rank& rank : ranks_) rank.arrived = false;
    ranks_[0].arrived = true;
    ranks_[0].message.assign(mine.begin(), mine.end());
    while (first_missing() < world_) poll_all(step, limit);
    std::vector<Bytes> all;
    for (Rank& rank : ranks_) all.push_back(std::move(rank.message));
    send_all(step, joined(all), limit);
    return all;
  }

  void tell(const GatherFailure& failure) override {
    std::vector<FrameStream*> streams;
    for (Rank& rank : ranks_) {
      if (rank.stream.is_open()) streams.push_back(&rank.stream);
    }
    for (FrameStream& visitor : visitors_) streams.push_back(&visitor);
    tell_all(streams, failure);
    visitors_.clear();
    listener_ = {};
    file_.reset();
  }

 private:
  struct Rank {
    FrameStream stream;    // not open: rank 0 itself, and those that are not there yet
    bool arrived = false;  // in this step
    int32_t told = -1;     // the missing rank that it was told of in this step
    Bytes message;
  };

  void open() {
    try {
      if (place_.file.empty()) {
        listener_ = listen_at(place_.at);
        return;
      }
      place_.at.host = host_name();
      listener_ = listen_anywhere(place_.at.port);
      run_ = draw_run();
      file_.emplace(place_.file, StoreEntry{.at = place_.at, .run = run_});
    } catch (const Error& error) {
      throw GatherFailed(error.what());
    }
  }

  int32_t first_missing() const {
    const auto missing = std::find_if(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return !rank.arrived; });
    return static_cast<int32_t>(missing - ranks_.begin());
  }

  // Waits for something to happen, and sees to the ranks to which it did.
  void poll_all(uint64_t step, const BoundedPoll& limit) {
    tell_missing(step);
    if (limit.over()) throw GatherFailed(tcp_wait(0, first_missing(), step, limit), at_text(step));
    std::vector<pollfd> polled;
    if (listener_.is_open()) polled.push_back({.fd = listener_.fd(), .events = POLLIN, .revents = 0});
    for (const FrameStream& visitor : visitors_) polled.push_back(visitor.polled());
    for (const Rank& rank : ranks_) {
      if (rank.stream.is_open()) polled.push_back(rank.stream.polled());
    }
    limit.wait(polled);
    for (int32_t rank = 1; rank < world_; ++rank) {
      if (at(rank).stream.is_open()) see_to(rank, step);
    }
  }

  void tell_missing(uint64_t step) {
    const int32_t missing = first_missing();
    for (Rank& rank : ranks_) {
      if (!rank.stream.is_open() || !rank.arrived || rank.told == missing || missing == world_) continue;
      rank.told = missing;
      rank.stream.send(FrameKind::kMissing, step, std::make_shared<const Bytes>(as_bytes(missing)));
    }
  }

  void see_to(int32_t number, uint64_t step) {
    Rank& rank = at(number);
    rank.stream.flush();
    while (std::optional<Frame> frame = receive(number)) {
      if (frame->kind != FrameKind::kMessage || frame->step != step || rank.arrived) {
        throw GatherFailed(text("rank ", number, " is in host all-gather ", frame->step, ", rank 0 in ", step));
      }
      rank.message = std::move(frame->body);
      rank.arrived = true;
    }
    if (rank.stream.has_ended()) throw tcp_closed(number, 0, step);
  }

  // Throws what the rank reports as its failure.
  std::optional<Frame> receive(int32_t number) {
    try {
      std::optional<Frame> frame = at(number).stream.receive();
      if (frame && frame->kind == FrameKind::kFailure) throw GatherFailed(GatherFailure::decode(frame->body));
      return frame;
    } catch (const NoFrame& what) {
      throw GatherFailed(text("rank ", number, " sent ", what.what()));
    }
  }

  // Whether the visitor is one no longer: a rank that is expected, or nobody.
  bool greet(FrameStream& visitor) {
    std::optional<Frame> frame;
    try {
      frame = visitor.receive();
      if (!frame) return visitor.has_ended();
      if (frame->kind != FrameKind::kHello) throw NoFrame("a frame without a hello");
      if (frame->step != run_) {
        visitor.send(FrameKind::kOtherRun, run_);
        return true;
      }
      return welcome(visitor, from_bytes<TcpHello>(frame->body));
    } catch (const NoFrame& what) {
      throw GatherFailed(text("what connected to rank 0 at ", place_.at.text(), " from ", peer_name(visitor.socket()),
                              " is no rank of this library: it sent ", what.what()));
    }
  }

  bool welcome(FrameStream& visitor, const TcpHello& hello) {
    const std::string from = peer_name(visitor.socket());
    if (hello.world != world_) {
      throw GatherFailed(text("all ranks must name the same world, got ", world_, " (rank 0) and ", hello.world,
                              " (rank ", hello.rank, ", from ", from, ")"),
                         GatherFailure::Kind::kInvalidArgument);
    }
    if (hello.rank < 1 || hello.rank >= world_) {
      throw GatherFailed(text("rank must lie in ", range_text(1, world_), " for who connects to rank 0, got ",
                              hello.rank, " from ", from),
                         GatherFailure::Kind::kInvalidArgument);
    }
    Rank& rank = at(hello.rank);
    if (rank.arrived) {
      throw GatherFailed(text("two processes say that they are rank ", hello.rank, " of ", world_, ": one from ",
                              peer_name(rank.stream.socket()), ", one from ", from),
                         GatherFailure::Kind::kInvalidArgument);
    }
    rank.stream = std::move(visitor);
    rank.arrived = true;
    rank.stream.send(FrameKind::kAccepted, 0);
    return true;
  }

  void send_all(uint64_t step, const std::shared_ptr<const Bytes>& body, const BoundedPoll& limit) {
    for (Rank& rank : ranks_) {
      rank.told = -1;
      if (rank.stream.is_open()) rank.stream.send(FrameKind::kAll, step, body);
    }
    while (true) {
      std::vector<pollfd> polled;
      for (int32_t rank = 1; rank < world_; ++rank) {
        FrameStream& stream = at(rank).stream;
        if (stream.is_broken()) {
          while (receive(rank)) {  // it may have said why
          }
          throw tcp_closed(rank, 0, step);
        }
        if (!stream.has_output()) continue;  // it is done with this step, and may even have gone
        if (limit.over()) {
          throw GatherFailed(tcp_wait(0, rank, step, limit), "which does not take the messages of the others");
        }
        polled.push_back({.fd = stream.socket().fd(), .events = POLLOUT, .revents = 0});
      }
      if (polled.empty()) return;
      limit.wait(polled);
      for (Rank& rank : ranks_) {
        if (rank.stream.has_output()) rank.stream.flush();
      }
    }
  }

  // The lengths of all messages, then the messages.
  static std::shared_ptr<const Bytes> joined(const std::vector<Bytes>& messages) {
    auto result = std::make_shared<Bytes>();
    for (const Bytes& message : messages) {
      const Bytes length = as_bytes(uint64_t{message.size()});
      result->insert(result->end(), length.begin(), length.end());
    }
    for (const Bytes& message : messages) result->insert(result->end(), message.begin(), message.end());
    return result;
  }

  std::string at_text(uint64_t step) const { return step == 0 ? text("which was to come to ", place_.text()) : ""; }
  Rank& at(int32_t rank) { return ranks_[static_cast<size_t>(rank)]; }

  const int32_t world_;
  TcpPlace place_;
  uint64_t run_ = 0;  // of a file; 0: the address was agreed on otherwise
  Socket listener_;
  std::optional<StoreFile> file_;
  std::vector<FrameStream> visitors_;  // who has not said a hello yet
  std::vector<Rank> ranks_;
};

}  // namespace

std::unique_ptr<TcpSide> make_tcp_root(int32_t world, const TcpPlace& place) {
  return std::make_unique<TcpRoot>(world, place);
}

}  // namespace tileoverlap
