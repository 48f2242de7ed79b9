#include "reduce/weighted_sum.hpp"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "core/cuda_objects.hpp"
#include "core/load_kernels.hpp"
#include "execute/device_watch.cuh"

namespace tileoverlap {
namespace {

constexpr int kThreads = 256;
constexpr int kVector = 8;  // elements of 16 bytes

template <class Pair>
__device__ float2 to_floats(Pair pair);
template <>
__device__ float2 to_floats(__nv_bfloat162 pair) {
  return __bfloat1622float2(pair);
}
template <>
__device__ float2 to_floats(__half2 pair) {
  return __half22float2(pair);
}
template <class Pair>
__device__ Pair from_floats(float2 values);
template <>
__device__ __nv_bfloat162 from_floats(float2 values) {
  return __float22bfloat162_rn(values);
}
template <>
__device__ __half2 from_floats(float2 values) {
  return __float22half2_rn(values);
}

template <class Pair>
struct alignas(16) Vector {
  Pair pairs[kVector / 2];
};

template <class Pair>
__global__ void __launch_bounds__(kThreads) weighted_sum_kernel(const WeightedSumTask task) {
  if (!is_running(task.world) || *task.refused_by >= 0) return;
  const int64_t vectors = task.n / kVector;
  const int64_t staging_rows = *task.staging_rows;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < task.tokens * vectors; i += step) {
    const int64_t token = i / vectors, column = i % vectors;
    float sum[kVector] = {};
    for (int32_t slot = 0; slot < task.top_k; ++slot) {
      const int64_t row = task.gather_row[token * task.top_k + slot];
      if (row < 0) continue;
      const std::byte* base = row < staging_rows ? task.staging : task.output;
      const int64_t at = element_offset(row < staging_rows ? row : row - staging_rows, vectors, column);
      const auto values = reinterpret_cast<const Vector<Pair>*>(base)[at];
      const float weight = task.weights[token * task.weight_stride + slot];
#pragma unroll
      for (int j = 0; j < kVector / 2; ++j) {
        const float2 pair = to_floats(values.pairs[j]);
        // Not fused: the same bits as the CPU's sum.
        sum[2 * j] = __fadd_rn(sum[2 * j], __fmul_rn(weight, pair.x));
        sum[2 * j + 1] = __fadd_rn(sum[2 * j + 1], __fmul_rn(weight, pair.y));
      }
    }
    Vector<Pair> result;
#pragma unroll
    for (int j = 0; j < kVector / 2; ++j) result.pairs[j] = from_floats<Pair>({sum[2 * j], sum[2 * j + 1]});
    *reinterpret_cast<Vector<Pair>*>(task.out +
                                     (token * task.out_stride + column * kVector) * int64_t{sizeof(Pair) / 2}) = result;
  }
}

template <class Pair>
void launch(const WeightedSumTask& task, int32_t sms, cudaStream_t stream) {
  constexpr int64_t kCtasPerSm = 8;
  const int64_t wanted = ceil_div(task.tokens * (task.n / kVector), kThreads);
  const auto ctas = static_cast<uint32_t>(max64(1, min64(wanted, sms * kCtasPerSm)));
  weighted_sum_kernel<Pair><<<ctas, kThreads, 0, stream>>>(task);
}

}  // namespace

void load_weighted_sum() {
  load_kernels({reinterpret_cast<const void*>(&weighted_sum_kernel<__nv_bfloat162>),
                reinterpret_cast<const void*>(&weighted_sum_kernel<__half2>)},
               "loading the weighted sum");
}

void weighted_sum(const WeightedSumTask& task, int32_t sms, cudaStream_t stream) {
  task.dtype == DType::kBFloat16 ? launch<__nv_bfloat162>(task, sms, stream) : launch<__half2>(task, sms, stream);
  cuda_check(cudaGetLastError(), "launching the weighted sum");
}

}  // namespace tileoverlap
