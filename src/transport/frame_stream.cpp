#include "transport/frame_stream.hpp"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <iomanip>
#include <sstream>

#include "core/text.hpp"

namespace tileoverlap {
namespace {

constexpr char kMagicText[] = "tovgath1";  // the digit counts versions of the protocol
constexpr size_t kMagicBytes = sizeof(kMagicText) - 1;

uint64_t magic() {
  uint64_t value;
  static_assert(sizeof(value) == kMagicBytes);
  std::memcpy(&value, kMagicText, sizeof(value));
  return value;
}

// Bytes as a person reads them: "GET / HT", "\x16\x03\x01".
std::string printable(const char* data, size_t bytes) {
  std::ostringstream out;
  for (size_t i = 0; i < bytes; ++i) {
    const auto byte = static_cast<unsigned char>(data[i]);
    if (std::isprint(byte) != 0) {
      out << data[i];
    } else {
      out << "\\x" << std::hex << std::setw(2) << std::setfill('0') << static_cast<int>(byte);
    }
  }
  return out.str();
}

}  // namespace

pollfd FrameStream::polled() const {
  return {.fd = socket_.fd(), .events = static_cast<int16_t>(POLLIN | (has_output() ? POLLOUT : 0)), .revents = 0};
}

void FrameStream::send(FrameKind kind, uint64_t step, std::shared_ptr<const Bytes> body) {
  if (body == nullptr) body = std::make_shared<const Bytes>();
  const Header header{.magic = magic(), .kind = static_cast<uint64_t>(kind), .step = step, .bytes = body->size()};
  output_.push_back({.header = header, .body = std::move(body)});
  flush();
}

void FrameStream::flush() {
  while (!output_.empty() && !broken_) {
    Output& next = output_.front();
    const size_t of_header = std::min(next.sent, sizeof(Header)), of_body = next.sent - of_header;
    std::array<iovec, 2> parts = {
        iovec{reinterpret_cast<char*>(&next.header) + of_header, sizeof(Header) - of_header},
        iovec{const_cast<std::byte*>(next.body->data()) + of_body, next.body->size() - of_body}};
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = parts.size();
    const ssize_t sent = sendmsg(socket_.fd(), &message, MSG_NOSIGNAL);
    if (sent < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) return;
      broken_ = true;
      break;
    }
    next.sent += static_cast<size_t>(sent);
    if (next.sent == sizeof(Header) + next.body->size()) output_.pop_front();
  }
  if (broken_) output_.clear();
}

std::optional<Frame> FrameStream::receive() {
  constexpr size_t kChunk = size_t{1} << 20;  // memory follows what came, not what was announced
  if (have_header_ < sizeof(header_)) {
    const bool complete = read_into(reinterpret_cast<std::byte*>(&header_), sizeof(header_), have_header_);
    check_header();
    if (!complete) return {};
  }
  while (have_body_ < header_.bytes) {
    body_.resize(std::min(static_cast<size_t>(header_.bytes), have_body_ + kChunk));
    if (!read_into(body_.data(), body_.size(), have_body_)) return {};
  }
  have_header_ = have_body_ = 0;
  return Frame{.kind = static_cast<FrameKind>(header_.kind), .step = header_.step, .body = std::exchange(body_, {})};
}

// Whether data[0, bytes) is complete; `have` counts.
bool FrameStream::read_into(std::byte* data, size_t bytes, size_t& have) {
  while (have < bytes && !ended_) {
    const ssize_t came = recv(socket_.fd(), data + have, bytes - have, 0);
    if (came > 0) {
      have += static_cast<size_t>(came);
    } else if (came == 0) {
      ended_ = true;
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return false;
    } else if (errno != EINTR) {
      ended_ = true;
    }
  }
  return have == bytes;
}

// As soon as the first byte is wrong: who sends something else may wait for an answer.
void FrameStream::check_header() const {
  const auto* got = reinterpret_cast<const char*>(&header_);
  const size_t have = std::min(have_header_, kMagicBytes);
  if (std::memcmp(got, kMagicText, have) != 0) {
    throw NoFrame(text("'", printable(got, have), "' in place of '", kMagicText, "'"));
  }
  if (have_header_ == sizeof(header_) && (header_.bytes > static_cast<uint64_t>(most_body_) ||
                                          header_.kind > static_cast<uint64_t>(FrameKind::kFailure))) {
    throw NoFrame(text("a frame of kind ", header_.kind, " with ", header_.bytes, " bytes, where at most ", most_body_,
                       " may come"));
  }
}

void FrameStream::finish() {
  if (is_open()) shutdown(socket_.fd(), SHUT_WR);
}

}  // namespace tileoverlap
