#include "reduce/cpu_reduce.hpp"

#include <algorithm>

#include "tileoverlap/core/dtype.hpp"
#include "tileoverlap/core/math.hpp"

namespace tileoverlap {
namespace {

constexpr int64_t kTokensPerChunk = 16;

template <class T>
void reduce_token(const ReduceTask& task, int64_t token, float* sum) {
  const int64_t n = task.out.shape[1];
  const int32_t top_k = task.index->top_k;
  std::fill_n(sum, n, 0.0f);
  for (int32_t slot = 0; slot < top_k; ++slot) {
    const int64_t row = task.index->gather_row[static_cast<size_t>(token * top_k + slot)];
    if (row < 0) continue;
    const T* values = row < task.staging_rows
                          ? reinterpret_cast<const T*>(task.staging) + element_offset(row, n)
                          : reinterpret_cast<const T*>(task.output) + element_offset(row - task.staging_rows, n);
    const float weight = task.weights.row<const float>(token)[slot];
    for (int64_t j = 0; j < n; ++j) sum[j] += weight * to_float(values[j]);
  }
  T* out = task.out.row<T>(token);
  for (int64_t j = 0; j < n; ++j) out[j] = from_float<T>(sum[j]);
}

}  // namespace

int64_t reduce_chunks(int64_t tokens) { return ceil_div(tokens, kTokensPerChunk); }

void reduce_tokens(const ReduceTask& task, float* sum) {
  const int64_t tokens = task.index->tokens;
  const int64_t chunks = reduce_chunks(tokens);
  for (int64_t i = task.ticket->fetch_add(1, std::memory_order_relaxed); i < chunks;
       i = task.ticket->fetch_add(1, std::memory_order_relaxed)) {
    const int64_t begin = (*task.order)[i] * kTokensPerChunk;
    const int64_t end = std::min(tokens, begin + kTokensPerChunk);
    with_row_type(task.out.dtype, [&]<class T>(T) {
      for (int64_t token = begin; token < end; ++token) reduce_token<T>(task, token, sum);
    });
  }
}

}  // namespace tileoverlap
