#include "support/tcp_world.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <thread>

namespace tileoverlap::testing {
namespace {

constexpr auto kPatience = std::chrono::seconds(30);
constexpr auto kPause = std::chrono::milliseconds(5);

sockaddr_in loopback_address(uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  return address;
}

uint16_t port_of(int fd) {
  sockaddr_in address{};
  socklen_t size = sizeof(address);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) throw std::runtime_error("getsockname");
  return ntohs(address.sin_port);
}

int bound_socket() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_in address = loopback_address(0);
  if (bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) throw std::runtime_error("bind");
  return fd;
}

}  // namespace

StorePlace::StorePlace() {
  std::string name = (std::filesystem::temp_directory_path() / "tileoverlap-test-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("no temporary folder");
  folder_ = name;
}

StorePlace::~StorePlace() { std::filesystem::remove_all(folder_); }

void StorePlace::write(const std::string& content) const { std::ofstream(path()) << content; }

std::string StorePlace::await_content() const {
  for (const auto end = std::chrono::steady_clock::now() + kPatience; std::chrono::steady_clock::now() < end;) {
    std::ifstream file(path());
    if (file) return {std::istreambuf_iterator<char>(file), {}};
    std::this_thread::sleep_for(kPause);
  }
  throw std::runtime_error("nobody wrote " + path());
}

uint16_t free_port() {
  const int fd = bound_socket();
  const uint16_t port = port_of(fd);
  close(fd);
  return port;
}

std::string loopback(uint16_t port) { return "127.0.0.1:" + std::to_string(port); }

Stranger Stranger::listening() {
  const int fd = bound_socket();
  if (listen(fd, 8) != 0) throw std::runtime_error("listen");
  return Stranger(fd);
}

Stranger Stranger::connected(uint16_t port) {
  const sockaddr_in address = loopback_address(port);
  for (const auto end = std::chrono::steady_clock::now() + kPatience; std::chrono::steady_clock::now() < end;) {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) return Stranger(fd);
    close(fd);
    std::this_thread::sleep_for(kPause);
  }
  throw std::runtime_error("nobody listens at port " + std::to_string(port));
}

Stranger::~Stranger() {
  close(fd_);
  if (visitor_ >= 0) close(visitor_);
}

uint16_t Stranger::port() const { return port_of(fd_); }

void Stranger::send(const std::string& bytes) const {
  if (::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL) < 0) throw std::runtime_error("send");
}

std::string Stranger::receive_to_the_end() const {
  std::string all;
  std::array<char, 4096> part;
  while (true) {
    const ssize_t came = recv(fd_, part.data(), part.size(), 0);
    if (came <= 0) return all;
    all.append(part.data(), static_cast<size_t>(came));
  }
}

void Stranger::answer_one(const std::string& bytes) {
  visitor_ = accept(fd_, nullptr, nullptr);
  if (visitor_ >= 0) static_cast<void>(::send(visitor_, bytes.data(), bytes.size(), MSG_NOSIGNAL));
}

}  // namespace tileoverlap::testing
