#pragma once
// The head of a layer call on the device: each rank writes its counts, or why it refuses, into all ranks' memory.

#include <cstdint>

#include "execute/device_world.hpp"

namespace tileoverlap {

// A refusal that the device found: the IdReport follows the head in place of a text.
inline constexpr int64_t kRefusedIds = -1;

// Bytes behind the head of a vote.
inline int64_t vote_bytes(int32_t experts) {
  return max64(int64_t{experts} * static_cast<int64_t>(sizeof(int32_t)), Status::kLongestRefusal);
}

struct CountsVote {
  DeviceWorld world;
  const int32_t* counts;  // [experts of all ranks], in device memory: this rank's row of the matrix
  int32_t experts;
  const IdReport* ids;  // in device memory; copy >= 0: the ids are refused
};

}  // namespace tileoverlap
