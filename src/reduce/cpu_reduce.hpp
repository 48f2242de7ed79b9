#pragma once
// The owner's weighted sum.

#include <atomic>
#include <cstdint>

#include "execute/disorder.hpp"
#include "tileoverlap/core/tensor.hpp"
#include "tileoverlap/dispatch/copy_index.hpp"

namespace tileoverlap {

// out[t] = sum over slots of weights[t][slot] * row(t, slot): float32, slots in order, slots without a copy skipped
// (neither their row nor their weight is read), rounded once. A token without a copy becomes zero.
struct ReduceTask {
  const CopyIndex* index;
  int64_t staging_rows;      // gather rows below this are staging rows, the others rows of `output`
  const std::byte* staging;  // [staging_rows, n]
  const std::byte* output;   // [rows, n], this rank's own experts' results
  TensorView weights;        // [T, k] float32
  TensorView out;            // [T, n]
  const TaskOrder* order;    // of chunks of tokens
  std::atomic<int64_t>* ticket;
};

int64_t reduce_chunks(int64_t tokens);

// Draws chunks of tokens until none is left. `sum` is the worker's buffer of n floats.
void reduce_tokens(const ReduceTask& task, float* sum);

}  // namespace tileoverlap
