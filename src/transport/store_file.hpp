#pragma once
// The file through which rank 0 tells the others where it listens.

#include <cstdint>
#include <optional>
#include <string>

#include "transport/socket.hpp"

namespace tileoverlap {

// Where a run's rank 0 listens. `run` is drawn for the run: the others say it when they connect, so that a file left
// behind, whose port now belongs to another run, does not bring them there.
struct StoreEntry {
  HostPort at;
  uint64_t run = 0;

  bool operator==(const StoreEntry& other) const { return run == other.run && at.text() == other.at.text(); }
};

uint64_t draw_run();  // not 0

// Written whole (under another name, then renamed) and readable by this user only; removed with this object, unless
// another rank 0 has replaced it. Throws Error.
class StoreFile {
 public:
  StoreFile(std::string path, StoreEntry entry);
  ~StoreFile();
  StoreFile(const StoreFile&) = delete;
  StoreFile& operator=(const StoreFile&) = delete;

  // Nothing, with the reason in `why`, where it is not there or is no such file.
  static std::optional<StoreEntry> read(const std::string& path, std::string& why);

 private:
  std::string path_;
  StoreEntry entry_;
};

}  // namespace tileoverlap
