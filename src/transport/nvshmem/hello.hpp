#pragma once
// What the ranks of an NVSHMEM world tell each other before they start it.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "transport/nvshmem/plugin.hpp"

namespace tileoverlap {

// One rank's words; sent as bytes. `failure` is empty where the rank can go on.
struct Hello {
  int32_t rank = 0, world = 1;
  NvshmemVersion built = {}, host = {};
  int32_t pes = 0;  // of the world that was started before
  int32_t padding = 0;
  uint64_t started = 0;                       // 1: NVSHMEM was started before, by the framework
  std::array<std::byte, 16> gpu = {};         // its UUID
  std::array<std::byte, 128> unique_id = {};  // of rank 0
  std::array<char, 512> failure = {};         // ends with 0
};

// Throws unless all ranks go together: InvalidArgument, naming both ranks and both values, where ranks, worlds or
// versions differ, some have started NVSHMEM before and others have not, or what was started is too small; Error with
// the failure of the first rank that cannot go on.
std::vector<Hello> check_hellos(const Hello& mine, const std::vector<std::vector<std::byte>>& all);
std::vector<std::byte> encode(const Hello& hello);

// How many ranks name the GPU of `rank`.
int32_t ranks_on_gpu_of(int32_t rank, const std::vector<Hello>& hellos);

}  // namespace tileoverlap
