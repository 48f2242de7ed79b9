#pragma once
// The threads of one CTA, as plan_call() wants them.

#include <cstdint>

namespace tileoverlap {

struct DeviceGroup {
  // Every thread of the CTA takes the step; none goes on before all have.
  template <class Step>
  __device__ void each(Step step) {
    step(static_cast<int32_t>(threadIdx.x), static_cast<int32_t>(blockDim.x));
    __syncthreads();
  }
};

}  // namespace tileoverlap
