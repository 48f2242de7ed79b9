#pragma once
// One connection of the host all-gather, as frames: what kind, of which step, and bytes.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <type_traits>
#include <vector>

#include "tileoverlap/core/error.hpp"
#include "transport/socket.hpp"

namespace tileoverlap {

using Bytes = std::vector<std::byte>;

enum class FrameKind : uint64_t {
  kHello,     // to rank 0: who connects; the step is the number of the run
  kOtherRun,  // to a rank: this rank 0 is one of another run
  kAccepted,  // to a rank: its hello is right
  kMissing,   // to a rank that waits: the first rank that is missing in the step
  kMessage,   // to rank 0: a rank's message
  kAll,       // to a rank: all messages; of step 0: all ranks are there
  kFailure,   // either way: why there are no further steps
};

struct Frame {
  FrameKind kind;
  uint64_t step;
  Bytes body;
};

// What came is no frame: somebody else is at the other end.
class NoFrame : public Error {
 public:
  using Error::Error;
};

template <class Value>
Bytes as_bytes(const Value& value) {
  static_assert(std::is_trivially_copyable_v<Value>);
  const auto bytes = std::as_bytes(std::span(&value, 1));
  return {bytes.begin(), bytes.end()};
}

// The value at the head of `bytes`.
template <class Value>
Value from_bytes(std::span<const std::byte> bytes) {
  static_assert(std::is_trivially_copyable_v<Value>);
  Value value;
  if (bytes.size() < sizeof(value)) throw NoFrame("a frame that is cut off");
  std::memcpy(&value, bytes.data(), sizeof(value));
  return value;
}

// Nothing here waits.
class FrameStream {
 public:
  FrameStream() = default;
  FrameStream(Socket socket, int64_t most_body_bytes) : socket_(std::move(socket)), most_body_(most_body_bytes) {}

  const Socket& socket() const { return socket_; }
  bool is_open() const { return socket_.is_open(); }
  // What there is to poll for: POLLIN, and POLLOUT while frames are queued.
  pollfd polled() const;

  // Sends as much as the connection takes; the rest goes out by flush(). One body may be queued on many streams.
  void send(FrameKind kind, uint64_t step, std::shared_ptr<const Bytes> body = {});
  void flush();
  bool has_output() const { return !output_.empty(); }
  // The peer takes no more; what it had said before may still be there to receive.
  bool is_broken() const { return broken_; }

  // The next whole frame, if it is there. Throws NoFrame.
  std::optional<Frame> receive();
  // The connection has closed and receive() has given all that came before.
  bool has_ended() const { return ended_; }
  // No more is sent; the peer receives what was.
  void finish();

 private:
  struct Header {
    uint64_t magic, kind, step, bytes;
  };
  struct Output {
    Header header;
    std::shared_ptr<const Bytes> body;
    size_t sent = 0;  // of header and body
  };
  bool read_into(std::byte* data, size_t bytes, size_t& have);
  void check_header() const;

  Socket socket_;
  int64_t most_body_ = 0;
  std::deque<Output> output_;
  bool broken_ = false, ended_ = false;
  Header header_ = {};
  size_t have_header_ = 0;
  Bytes body_;
  size_t have_body_ = 0;
};

}  // namespace tileoverlap
