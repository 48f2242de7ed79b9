#include "dispatch/push_rows.hpp"

#include "core/cuda_objects.hpp"
#include "execute/device_watch.cuh"

namespace tileoverlap {
namespace {

constexpr int kWarps = 8;

// One warp a copy: a row is read once for each of its slots, from L2 after the first.
__global__ void __launch_bounds__(kWarps * 32) push_rows_kernel(const PushTask task) {
  if (!DeviceWatch(task.world).running()) return;
  const int64_t vectors = task.row_bytes / static_cast<int64_t>(sizeof(uint4));
  const int64_t lane = threadIdx.x % 32, step = static_cast<int64_t>(gridDim.x) * kWarps;
  for (int64_t copy = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32; copy < task.tokens * task.top_k;
       copy += step) {
    const int64_t row = task.dispatch_row[copy];
    if (row < 0) continue;
    const auto* from = reinterpret_cast<const uint4*>(task.x + copy / task.top_k * task.x_stride_bytes);
    auto* to =
        reinterpret_cast<uint4*>(task.world.parts[task.peer[copy]] + task.world.layout.input + row * task.row_bytes);
#pragma unroll 4
    for (int64_t i = lane; i < vectors; i += 32) to[i] = from[i];
  }
}

}  // namespace

void load_push_rows() {
  cudaFuncAttributes attributes;
  cuda_check(cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(&push_rows_kernel)),
             "loading the dispatch");
}

void push_rows(const PushTask& task, int32_t sms, cudaStream_t stream) {
  constexpr int64_t kCtasPerSm = 4;
  const int64_t wanted = ceil_div(task.tokens * task.top_k, kWarps);
  const auto ctas = static_cast<uint32_t>(max64(1, min64(wanted, sms * kCtasPerSm)));
  push_rows_kernel<<<ctas, kWarps * 32, 0, stream>>>(task);
  cuda_check(cudaGetLastError(), "launching the dispatch");
}

}  // namespace tileoverlap
