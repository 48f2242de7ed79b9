#pragma once
// The two sides of the TCP all-gather: rank 0, which all others connect to, and each of those.
//
// Step 0 is done when all ranks are there; each later one when all messages are. In a step rank 0 tells those that
// wait for which rank they do, so that a limit names the same rank on each.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tileoverlap/transport/tcp_gather.hpp"
#include "transport/bounded_poll.hpp"
#include "transport/gather_failure.hpp"

namespace tileoverlap {

// Calls throw GatherFailed, or what BoundedPoll::wait throws; then come tell() and the end.
class TcpSide {
 public:
  virtual ~TcpSide() = default;
  virtual void connect(const BoundedPoll& limit) = 0;
  virtual std::vector<Bytes> gather(uint64_t step, std::span<const std::byte> mine, const BoundedPoll& limit) = 0;
  // Tells the ranks that can be reached, within a second.
  virtual void tell(const GatherFailure& failure) = 0;
};

// Where rank 0 is found.
struct TcpPlace {
  std::string file;  // empty: `at` says it
  HostPort at;

  std::string text() const { return file.empty() ? at.text() : "file:" + file; }
  static TcpPlace parse(const std::string& address);  // InvalidArgument
};

struct TcpHello {
  int32_t rank, world;
};

std::unique_ptr<TcpSide> make_tcp_root(int32_t world, const TcpPlace& place);
std::unique_ptr<TcpSide> make_tcp_leaf(int32_t rank, int32_t world, const TcpPlace& place);

// Why a step ends whose peer, `gone`, is no longer there for `other`.
GatherFailed tcp_closed(int32_t gone, int32_t other, uint64_t step);

// What is waited for in a step.
inline WaitRecord tcp_wait(int32_t rank, int32_t peer, uint64_t step, const BoundedPoll& limit) {
  return {.what = step == 0 ? WaitFor::kConnection : WaitFor::kHostMessage,
          .rank = rank,
          .peer = peer,
          .epoch = step,
          .timeout_ns = limit.limit_ns()};
}

// Sends the failure, and what was queued before it, on each stream and closes that side of them.
void tell_all(std::span<FrameStream* const> streams, const GatherFailure& failure);

}  // namespace tileoverlap
