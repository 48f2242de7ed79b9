#include "transport/socket.hpp"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>
#include <system_error>

#include "core/text.hpp"
#include "tileoverlap/core/error.hpp"

namespace tileoverlap {
namespace {

constexpr int kSocketFlags = SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC;

std::string error_text(int code) { return std::generic_category().message(code); }

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

// Null, with the reason in `why`, where the name means nothing (yet).
Addresses resolve(const HostPort& at, std::string& why) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int code =
      getaddrinfo(at.host.empty() ? nullptr : at.host.c_str(), std::to_string(at.port).c_str(), &hints, &found);
  if (code != 0) {
    why = code == EAI_SYSTEM ? error_text(errno) : gai_strerror(code);
    found = nullptr;
  }
  return {found, &freeaddrinfo};
}

void set_option(const Socket& socket, int level, int option, int value) {
  setsockopt(socket.fd(), level, option, &value, sizeof(value));
}

std::string name_of(const sockaddr_storage& address, socklen_t size) {
  char host[NI_MAXHOST], port[NI_MAXSERV];
  if (getnameinfo(reinterpret_cast<const sockaddr*>(&address), size, host, sizeof(host), port, sizeof(port),
                  NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return "somebody";
  }
  return std::strchr(host, ':') != nullptr ? text('[', host, "]:", port) : text(host, ':', port);
}

std::string local_name(const Socket& socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  if (getsockname(socket.fd(), reinterpret_cast<sockaddr*>(&address), &size) != 0) return {};
  return name_of(address, size);
}

// 0, or the error of a connection that is no more under way.
int connection_error(const Socket& socket) {
  int code = 0;
  socklen_t size = sizeof(code);
  if (getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &code, &size) != 0) return errno;
  return code;
}

// 0, or why not.
int connect_within(const Socket& socket, const addrinfo& address, const BoundedPoll& limit) {
  // A machine that does not answer must not take all of the limit from its other addresses.
  constexpr int64_t kTryNs = 3'000'000'000;
  if (connect(socket.fd(), address.ai_addr, address.ai_addrlen) == 0) return 0;
  if (errno != EINPROGRESS && errno != EINTR) return errno;
  const std::function<void()> none;
  const BoundedPoll one_try(kTryNs, none);
  while (!limit.over() && !one_try.over()) {
    pollfd polled{.fd = socket.fd(), .events = POLLOUT, .revents = 0};
    limit.wait({&polled, 1});
    if (polled.revents != 0) return connection_error(socket);
  }
  return ETIMEDOUT;
}

}  // namespace

std::string HostPort::text() const {
  if (host.empty()) return tileoverlap::text("localhost:", port);
  return host.find(':') == std::string::npos ? tileoverlap::text(host, ':', port)
                                             : tileoverlap::text('[', host, "]:", port);
}

HostPort HostPort::parse(const std::string& address) {
  HostPort result;
  const size_t colon = address.rfind(':');
  const auto refuse = [&] {
    throw InvalidArgument(
        tileoverlap::text("address must be HOST:PORT with a port in 1..65535 ([::1]:29500 for IPv6) "
                          "or file:PATH, got '",
                          address, "'"));
  };
  if (colon == std::string::npos || colon == 0) refuse();
  result.host = address.substr(0, colon);
  if (result.host.front() == '[' && result.host.back() == ']') {
    result.host = result.host.substr(1, result.host.size() - 2);
  } else if (result.host.find(':') != std::string::npos) {
    refuse();
  }
  const char* const end = address.data() + address.size();
  const auto [parsed, error] = std::from_chars(address.data() + colon + 1, end, result.port);
  if (result.host.empty() || error != std::errc{} || parsed != end || result.port == 0) refuse();
  return result;
}

std::string host_name() {
  char name[256] = {};
  return gethostname(name, sizeof(name) - 1) == 0 ? name : "localhost";
}

std::string peer_name(const Socket& socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  if (getpeername(socket.fd(), reinterpret_cast<sockaddr*>(&address), &size) != 0) return "somebody";
  return name_of(address, size);
}

Socket listen_at(const HostPort& at) {
  std::string why;
  const Addresses addresses = resolve(at, why);
  for (const addrinfo* address = addresses.get(); address != nullptr; address = address->ai_next) {
    Socket socket(::socket(address->ai_family, kSocketFlags, 0));
    set_option(socket, SOL_SOCKET, SO_REUSEADDR, 1);  // connections of an earlier run may still be closing
    if (socket.is_open() && bind(socket.fd(), address->ai_addr, address->ai_addrlen) == 0 &&
        listen(socket.fd(), SOMAXCONN) == 0) {
      return socket;
    }
    why = error_text(errno);
    if (errno == EADDRINUSE) break;  // the host's other addresses would hide that somebody else is there
  }
  throw Error(text("rank 0 cannot listen at ", at.text(), ": ", why));
}

Socket listen_anywhere(uint16_t& port) {
  sockaddr_storage address{};
  socklen_t size = sizeof(sockaddr_in6);
  address.ss_family = AF_INET6;  // the address of all zeros is any
  Socket socket(::socket(AF_INET6, kSocketFlags, 0));
  set_option(socket, IPPROTO_IPV6, IPV6_V6ONLY, 0);
  if (!socket.is_open() || bind(socket.fd(), reinterpret_cast<sockaddr*>(&address), size) != 0) {
    size = sizeof(sockaddr_in);
    address.ss_family = AF_INET;
    socket = Socket(::socket(AF_INET, kSocketFlags, 0));
    if (!socket.is_open() || bind(socket.fd(), reinterpret_cast<sockaddr*>(&address), size) != 0) {
      throw Error(text("rank 0 cannot listen at any port: ", error_text(errno)));
    }
  }
  if (listen(socket.fd(), SOMAXCONN) != 0 ||
      getsockname(socket.fd(), reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    throw Error(text("rank 0 cannot listen at a port of its own: ", error_text(errno)));
  }
  port = ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(address).sin6_port
                                             : reinterpret_cast<sockaddr_in&>(address).sin_port);
  return socket;
}

Socket accept_visitor(const Socket& listener) {
  Socket socket(accept4(listener.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (socket.is_open()) set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  return socket;
}

Socket try_connect(const HostPort& to, const BoundedPoll& limit, std::string& why) {
  const Addresses addresses = resolve(to, why);
  for (const addrinfo* address = addresses.get(); address != nullptr; address = address->ai_next) {
    Socket socket(::socket(address->ai_family, kSocketFlags, 0));
    const int error = socket.is_open() ? connect_within(socket, *address, limit) : errno;
    // Where nobody listens at a port of this machine, the system may give the caller that very port, and connects it
    // with itself.
    if (error == 0 && local_name(socket) != peer_name(socket)) {
      set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1);
      return socket;
    }
    // A try that the limit has cut off says less than the one before it.
    if (error == ETIMEDOUT && limit.over() && !why.empty()) continue;
    why = error_text(error == 0 ? ECONNREFUSED : error);
  }
  return {};
}

}  // namespace tileoverlap
