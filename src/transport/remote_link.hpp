#pragma once
// What the executor needs to know of a transport some of whose peers are not mapped.

#include <cstdint>
#include <vector>

namespace tileoverlap {

struct LinkKernels;

struct RemoteLink {
  const LinkKernels* kernels;  // that reach all peers
  std::vector<int32_t> pes;    // by rank: its number in NVSHMEM's world
};

}  // namespace tileoverlap
