#include "tileoverlap/transport/tcp_gather.hpp"

#include <mutex>
#include <optional>
#include <string_view>
#include <type_traits>

#include "core/text.hpp"
#include "tileoverlap/core/env.hpp"
#include "transport/frame_stream.hpp"
#include "transport/tcp_side.hpp"

namespace tileoverlap {
namespace {

constexpr std::string_view kFile = "file:";

class TcpGather {
 public:
  explicit TcpGather(const TcpGatherOptions& options)
      : rank_(options.rank),
        limit_ns_(options.limit_ns > 0 ? options.limit_ns : Env::read().timeout_ns),
        interrupt_(options.interrupt) {
    if (options.world == 1) return;
    const TcpPlace place = TcpPlace::parse(options.address);
    side_ = rank_ == 0 ? make_tcp_root(options.world, place) : make_tcp_leaf(rank_, options.world, place);
    or_tell([&](const BoundedPoll& limit) { side_->connect(limit); });
  }

  std::vector<Bytes> gather(std::span<const std::byte> mine) {
    const std::scoped_lock one_at_a_time(mutex_);
    if (failure_) failure_->raise(rank_);
    if (side_ == nullptr) return {Bytes(mine.begin(), mine.end())};
    return or_tell([&](const BoundedPoll& limit) {
      if (mine.size() > static_cast<size_t>(kMostMessageBytes)) {
        throw GatherFailed(text("a message of a host all-gather must have at most ", kMostMessageBytes, " bytes, rank ",
                                rank_, " gave one of ", mine.size()),
                           GatherFailure::Kind::kInvalidArgument);
      }
      return side_->gather(++step_, mine, limit);
    });
  }

 private:
  // What ends the step ends the all-gather, and the others are to know why.
  template <class Step>
  std::invoke_result_t<Step, const BoundedPoll&> or_tell(Step step) {
    const BoundedPoll limit(limit_ns_, interrupt_);
    try {
      return step(limit);
    } catch (const GatherFailed& failed) {
      failure_ = failed.failure;
    } catch (...) {  // from interrupt, or no memory
      failure_ = GatherFailure{.text = text("host all-gather ", step_, " was interrupted on rank ", rank_)};
      side_->tell(*failure_);
      throw;
    }
    side_->tell(*failure_);
    failure_->raise(rank_);
  }

  const int32_t rank_;
  const int64_t limit_ns_;
  const std::function<void()> interrupt_;
  std::unique_ptr<TcpSide> side_;  // null: a world of one
  std::mutex mutex_;               // held during a step
  uint64_t step_ = 0;
  std::optional<GatherFailure> failure_;
};

}  // namespace

TcpPlace TcpPlace::parse(const std::string& address) {
  if (!address.starts_with(kFile)) return {.file = {}, .at = HostPort::parse(address)};
  if (address.size() == kFile.size()) {
    throw InvalidArgument(tileoverlap::text("address must be HOST:PORT or file:PATH, got '", address, "'"));
  }
  return {.file = address.substr(kFile.size()), .at = {}};
}

GatherFailed tcp_closed(int32_t gone, int32_t other, uint64_t step) {
  return GatherFailed(text("rank ", gone, " has closed its connection to rank ", other,
                           step == 0 ? text(" before all ranks were there") : text(" in host all-gather ", step),
                           ": its process has ended, or has let go of the all-gather"));
}

void tell_all(std::span<FrameStream* const> streams, const GatherFailure& failure) {
  constexpr int64_t kLimitNs = 1'000'000'000;
  const std::function<void()> nothing;
  const BoundedPoll limit(kLimitNs, nothing);
  const auto body = std::make_shared<const Bytes>(failure.encode());
  for (FrameStream* stream : streams) stream->send(FrameKind::kFailure, 0, body);
  while (!limit.over()) {
    std::vector<pollfd> polled;
    for (FrameStream* stream : streams) {
      if (!stream->has_output()) continue;
      polled.push_back({.fd = stream->socket().fd(), .events = POLLOUT, .revents = 0});
      stream->flush();
    }
    if (polled.empty()) break;
    limit.wait(polled);
  }
  for (FrameStream* stream : streams) stream->finish();
}

HostAllGather make_tcp_all_gather(const TcpGatherOptions& options) {
  if (options.world < 1) throw InvalidArgument(text("world must be at least 1, got ", options.world));
  if (options.rank < 0 || options.rank >= options.world) {
    throw InvalidArgument(text("rank must lie in ", range_text(0, options.world), ", got ", options.rank));
  }
  if (options.limit_ns < 0 || options.limit_ns > kLongestTimeoutNs) {
    throw InvalidArgument(text("limit_ns must lie in 0..", kLongestTimeoutNs, ", got ", options.limit_ns));
  }
  const auto gather = std::make_shared<TcpGather>(options);
  return [gather](std::span<const std::byte> mine) { return gather->gather(mine); };
}

}  // namespace tileoverlap
