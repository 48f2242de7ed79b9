#pragma once
// Places where ranks meet over TCP, and strangers who come there.

#include <cstdint>
#include <filesystem>
#include <string>

#include "tileoverlap/transport/tcp_gather.hpp"

namespace tileoverlap::testing {

inline constexpr int64_t kShortLimit = 300'000'000;

// A folder of its own for the file through which ranks meet.
class StorePlace {
 public:
  StorePlace();
  ~StorePlace();
  StorePlace(const StorePlace&) = delete;
  StorePlace& operator=(const StorePlace&) = delete;

  std::string path() const { return folder_ / "store"; }
  std::string address() const { return "file:" + path(); }
  bool is_empty() const { return std::filesystem::is_empty(folder_); }
  void write(const std::string& content) const;
  // What is in the file, once there is one.
  std::string await_content() const;

 private:
  std::filesystem::path folder_;
};

// A port of the loopback at which nobody listens: the system has given it a moment ago.
uint16_t free_port();
std::string loopback(uint16_t port);  // "127.0.0.1:PORT"

// A plain connection, or a listener, that knows nothing of this library.
class Stranger {
 public:
  static Stranger listening();               // at a port of its own
  static Stranger connected(uint16_t port);  // tries until somebody listens
  ~Stranger();
  Stranger(const Stranger&) = delete;
  Stranger& operator=(const Stranger&) = delete;

  uint16_t port() const;
  void send(const std::string& bytes) const;
  std::string receive_to_the_end() const;
  // Answers the next visitor with these bytes, and keeps the connection.
  void answer_one(const std::string& bytes);

 private:
  explicit Stranger(int fd) : fd_(fd) {}
  int fd_, visitor_ = -1;
};

}  // namespace tileoverlap::testing
