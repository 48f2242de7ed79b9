#pragma once
// TCP sockets: names, listening, connecting. None of them blocks, and none is inherited by programs that are started.

#include <unistd.h>

#include <cstdint>
#include <string>
#include <utility>

#include "transport/bounded_poll.hpp"

namespace tileoverlap {

// Owns a descriptor.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Socket() {
    if (fd_ >= 0) ::close(fd_);
  }
  int fd() const { return fd_; }
  bool is_open() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

struct HostPort {
  std::string host;  // empty: this machine's loopback
  uint16_t port = 0;

  std::string text() const;  // "host:29500", "[::1]:29500"
  // Throws InvalidArgument unless it is "HOST:PORT".
  static HostPort parse(const std::string& address);
};

std::string host_name();
// Who is at the other end, "127.0.0.1:40112"; "somebody" where that cannot be told any more.
std::string peer_name(const Socket& socket);

// Throw Error, which names the address and why.
Socket listen_at(const HostPort& at);
Socket listen_anywhere(uint16_t& port);  // on all of this machine's addresses, at a port that the system chooses

// The next visitor; closed where there is none.
Socket accept_visitor(const Socket& listener);

// One try on each of the host's addresses; closed, with the reason in `why`, where none answers. Asking a name server
// has limits of its own.
Socket try_connect(const HostPort& to, const BoundedPoll& limit, std::string& why);

}  // namespace tileoverlap
