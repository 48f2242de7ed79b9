#pragma once
// Dispatch on a GPU: each token's row goes straight to its planned rows on the ranks that host its experts.

#include <cstdint>

#include "execute/device_world.hpp"

namespace tileoverlap {

struct PushTask {
  DeviceWorld world;
  const std::byte* x;  // [tokens, row_bytes]
  int64_t x_stride_bytes;
  int64_t row_bytes;  // a multiple of 16
  int64_t tokens;
  int32_t top_k;
  const int32_t* peer;          // [tokens * top_k]: who hosts the copy's expert; not read where dispatch_row is -1
  const int64_t* dispatch_row;  // [tokens * top_k]; -1: no copy
};

}  // namespace tileoverlap
