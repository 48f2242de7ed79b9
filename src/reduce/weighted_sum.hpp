#pragma once
// The owner's sum on a GPU: each token's returned rows, weighted, in float32, slots in order. The result depends on
// neither arrival order nor grid: one thread sums 16 bytes of a token by itself.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "execute/device_world.hpp"
#include "tileoverlap/core/dtype.hpp"

namespace tileoverlap {

struct WeightedSumTask {
  DeviceWorld world;
  DType dtype;        // bfloat16 or float16
  int64_t tokens, n;  // n elements a row
  int32_t top_k;
  const int64_t* gather_row;    // [tokens * top_k], see CopyIndex::gather_row
  const int64_t* staging_rows;  // in device memory: gather rows from here on are rows of `output`
  const std::byte* staging;     // [.., n]
  const std::byte* output;      // [.., n]
  const float* weights;         // [tokens, top_k]
  int64_t weight_stride;        // elements
  std::byte* out;               // [tokens, n]
  int64_t out_stride;           // elements
  const int32_t* refused_by;    // in device memory: not -1 where the call was refused and nothing is written
};

void load_weighted_sum();
void weighted_sum(const WeightedSumTask& task, int32_t sms, cudaStream_t stream);

}  // namespace tileoverlap
