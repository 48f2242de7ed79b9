#include <algorithm>
#include <chrono>
#include <optional>

#include "core/text.hpp"
#include "transport/frame_stream.hpp"
#include "transport/store_file.hpp"
#include "transport/tcp_side.hpp"

namespace tileoverlap {
namespace {

class TcpLeaf final : public TcpSide {
 public:
  TcpLeaf(int32_t rank, int32_t world, TcpPlace place) : rank_(rank), world_(world), place_(std::move(place)) {}

  void connect(const BoundedPoll& limit) override {
    using std::chrono::milliseconds;
    constexpr milliseconds kFirstPause(10), kLongestPause(200);
    milliseconds pause = kFirstPause;
    while (!try_to_join(limit)) {
      if (limit.over()) {
        throw GatherFailed(tcp_wait(rank_, 0, 0, limit), text("which was to listen at ", place_.text(), ": ", why_));
      }
      limit.wait({}, pause);
      pause = std::min(2 * pause, kLongestPause);
    }
    await_all(0, limit);
  }

  std::vector<Bytes> gather(uint64_t step, std::span<const std::byte> mine, const BoundedPoll& limit) override {
    stream_.send(FrameKind::kMessage, step, std::make_shared<const Bytes>(mine.begin(), mine.end()));
    return parted(await_all(step, limit));
  }

  void tell(const GatherFailure& failure) override {
    if (!stream_.is_open()) return;
    FrameStream* const stream = &stream_;
    tell_all({&stream, 1}, failure);
  }

 private:
  // Whether rank 0 has accepted this rank; if not, why_ says what was there in its place.
  bool try_to_join(const BoundedPoll& limit) {
    HostPort to = place_.at;
    uint64_t run = 0;
    if (!place_.file.empty()) {
      entry_ = StoreFile::read(place_.file, why_);
      if (!entry_) return false;
      to = entry_->at;
      run = entry_->run;
      if (to.host == host_name()) to.host.clear();  // the name need not be known to its own machine
    }
    Socket socket = try_connect(to, limit, why_);
    if (!socket.is_open()) return false;
    const int64_t lengths = world_ * static_cast<int64_t>(sizeof(uint64_t));
    stream_ = FrameStream(std::move(socket), world_ * kMostMessageBytes + lengths);
    stream_.send(FrameKind::kHello, run,
                 std::make_shared<const Bytes>(as_bytes(TcpHello{.rank = rank_, .world = world_})));
    const bool accepted = await_acceptance(limit);
    if (!accepted) stream_ = {};
    return accepted;
  }

  bool await_acceptance(const BoundedPoll& limit) {
    while (!limit.over()) {
      pollfd polled = stream_.polled();
      limit.wait({&polled, 1});
      std::optional<Frame> frame;
      try {
        frame = stream_.receive();
      } catch (const NoFrame& what) {
        return refuse(text("is no rank 0 of this library: it sent ", what.what()));
      }
      if (frame) {
        if (frame->kind == FrameKind::kAccepted) return true;
        if (frame->kind == FrameKind::kFailure) throw GatherFailed(GatherFailure::decode(frame->body));
        return refuse(frame->kind == FrameKind::kOtherRun ? "is the rank 0 of another run, which was started with file:"
                                                          : "does not answer as a rank 0");
      }
      if (stream_.has_ended()) {
        why_ = "it closes the connection";
        return false;
      }
      if (file_has_changed()) return false;
    }
    why_ = "it does not answer";
    return false;
  }

  // Somebody else is where rank 0 was to be. With a file, this is a port that an earlier run has left.
  bool refuse(const std::string& what) {
    if (place_.file.empty()) {
      throw GatherFailed(
          text("what listens at ", place_.at.text(), ", where rank ", rank_, " looks for rank 0, ", what));
    }
    why_ = text("what listens at ", entry_->at.text(), ' ', what);
    return false;
  }

  // Rank 0 removes its file when all ranks are there; another content is another rank 0.
  bool file_has_changed() {
    if (place_.file.empty()) return false;
    std::string why;
    const std::optional<StoreEntry> now = StoreFile::read(place_.file, why);
    return now && !(now == entry_);
  }

  // What rank 0 sends at the end of the step.
  Bytes await_all(uint64_t step, const BoundedPoll& limit) {
    int32_t missing = 0;  // until rank 0 is in the step and names another
    while (true) {
      stream_.flush();
      try {
        while (std::optional<Frame> frame = stream_.receive()) {
          if (frame->kind == FrameKind::kFailure) throw GatherFailed(GatherFailure::decode(frame->body));
          if (frame->step != step) {
            throw GatherFailed(text("rank 0 is in host all-gather ", frame->step, ", rank ", rank_, " in ", step));
          }
          if (frame->kind == FrameKind::kAll) return std::move(frame->body);
          if (frame->kind == FrameKind::kMissing) missing = from_bytes<int32_t>(frame->body);
        }
      } catch (const NoFrame& what) {
        throw GatherFailed(text("rank 0 sent ", what.what(), " to rank ", rank_));
      }
      if (stream_.has_ended()) throw tcp_closed(0, rank_, step);
      if (limit.over()) throw GatherFailed(tcp_wait(rank_, missing, step, limit));
      pollfd polled = stream_.polled();
      limit.wait({&polled, 1});
    }
  }

  std::vector<Bytes> parted(const Bytes& all) const {
    std::vector<Bytes> messages;
    std::span<const std::byte> lengths(all), rest = lengths;
    rest = rest.subspan(std::min(rest.size(), static_cast<size_t>(world_) * sizeof(uint64_t)));
    for (int32_t rank = 0; rank < world_; ++rank) {
      const auto bytes = from_bytes<uint64_t>(lengths.subspan(static_cast<size_t>(rank) * sizeof(uint64_t)));
      if (bytes > rest.size()) throw NoFrame("messages that are cut off");
      messages.emplace_back(rest.begin(), rest.begin() + static_cast<ptrdiff_t>(bytes));
      rest = rest.subspan(bytes);
    }
    return messages;
  }

  const int32_t rank_, world_;
  const TcpPlace place_;
  std::optional<StoreEntry> entry_;  // what the file said
  std::string why_;
  FrameStream stream_;
};

}  // namespace

std::unique_ptr<TcpSide> make_tcp_leaf(int32_t rank, int32_t world, const TcpPlace& place) {
  return std::make_unique<TcpLeaf>(rank, world, place);
}

}  // namespace tileoverlap
