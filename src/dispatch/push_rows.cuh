#pragma once
// The dispatch kernel, for any link.

#include "core/cuda_objects.hpp"
#include "core/load_kernels.hpp"
#include "dispatch/push_rows.hpp"
#include "execute/device_watch.cuh"

namespace tileoverlap {

inline constexpr int32_t kPushWarps = 8, kPushCtasPerSm = 4;

// One warp a copy: a row is read once for each of its slots, from L2 after the first.
template <class Link>
__global__ void __launch_bounds__(kPushWarps * 32) push_rows_kernel(const PushTask task) {
  if (!is_running(task.world)) return;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kPushWarps;
  for (int64_t copy = static_cast<int64_t>(blockIdx.x) * kPushWarps + threadIdx.x / 32; copy < task.tokens * task.top_k;
       copy += step) {
    const int64_t row = task.dispatch_row[copy];
    if (row < 0) continue;
    Link::put_row(task.world, task.peer[copy], task.world.layout.input + row * task.row_bytes,
                  task.x + copy / task.top_k * task.x_stride_bytes, task.row_bytes);
  }
}

template <class Link>
void load_push_rows() {
  load_kernels({reinterpret_cast<const void*>(&push_rows_kernel<Link>)}, "loading the dispatch");
}

template <class Link>
void push_rows(const PushTask& task, int32_t sms, cudaStream_t stream) {
  const int64_t wanted = ceil_div(task.tokens * task.top_k, kPushWarps);
  const auto ctas = static_cast<uint32_t>(max64(1, min64(wanted, sms * kPushCtasPerSm)));
  push_rows_kernel<Link><<<ctas, kPushWarps * 32, 0, stream>>>(task);
  cuda_check(cudaGetLastError(), "launching the dispatch");
}

}  // namespace tileoverlap
