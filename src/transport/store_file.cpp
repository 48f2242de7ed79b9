#include "transport/store_file.hpp"

#include <fcntl.h>

#include <cerrno>
#include <cstdio>
#include <fstream>
#include <random>
#include <system_error>

#include "core/text.hpp"
#include "tileoverlap/core/error.hpp"

namespace tileoverlap {
namespace {

constexpr const char* kMark = "tileoverlap-store-1";

[[noreturn]] void cannot_write(const std::string& path, int code) {
  throw Error(text("rank 0 cannot write the store file '", path, "': ", std::generic_category().message(code)));
}

}  // namespace

uint64_t draw_run() {
  std::random_device source;
  return (uint64_t{source()} << 32 | source()) | 1;
}

StoreFile::StoreFile(std::string path, StoreEntry entry) : path_(std::move(path)), entry_(std::move(entry)) {
  const std::string partial = text(path_, '.', entry_.run, ".partial");
  const std::string content = text(kMark, ' ', entry_.at.text(), ' ', entry_.run, '\n');
  const int fd = open(partial.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) cannot_write(path_, errno);
  const ssize_t written = write(fd, content.data(), content.size());
  int code = written == static_cast<ssize_t>(content.size()) ? 0 : written < 0 ? errno : ENOSPC;
  if (close(fd) != 0 && code == 0) code = errno;
  if (code == 0 && std::rename(partial.c_str(), path_.c_str()) != 0) code = errno;
  if (code == 0) return;
  unlink(partial.c_str());
  cannot_write(path_, code);
}

StoreFile::~StoreFile() {
  std::string why;
  if (read(path_, why) == entry_) unlink(path_.c_str());
}

std::optional<StoreEntry> StoreFile::read(const std::string& path, std::string& why) {
  errno = 0;
  std::ifstream file(path);
  std::string mark, at;
  StoreEntry entry;
  if (!file) {
    why = text("'", path, "': ", std::generic_category().message(errno));
    return {};
  }
  if (!(file >> mark >> at >> entry.run) || mark != kMark) {
    why = text("'", path, "' is no store file of this library");
    return {};
  }
  try {
    entry.at = HostPort::parse(at);
  } catch (const InvalidArgument&) {
    why = text("'", path, "' names no address but '", at, "'");
    return {};
  }
  return entry;
}

}  // namespace tileoverlap
