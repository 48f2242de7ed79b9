#pragma once
// Loading kernels before their first launch, which would otherwise wait for the GPU while it loads them.

#include <initializer_list>
#include <string_view>

#include "core/cuda_objects.hpp"
#include "core/device_query.hpp"

namespace tileoverlap {

// On the current device. Throws Error beginning with `what`; where there is no code for the device, it names both
// sides.
inline void load_kernels(std::initializer_list<const void*> kernels, std::string_view what) {
  for (const void* kernel : kernels) {
    cudaFuncAttributes attributes;
    const cudaError_t result = cudaFuncGetAttributes(&attributes, kernel);
    if (result == cudaErrorNoKernelImageForDevice || result == cudaErrorUnsupportedPtxVersion) {
      (void)cudaGetLastError();
      int device = 0;
      cuda_check(cudaGetDevice(&device), what);
      const int32_t capability = capability_of(device);
      throw Error(text(what, ": cuda:", device, " has compute capability ", capability / 10, ".", capability % 10,
                       ", and the library was built for ", TILEOVERLAP_BUILT_FOR,
                       " (TILEOVERLAP_CUDA_ARCHITECTURES): ", cudaGetErrorString(result)));
    }
    cuda_check(result, what);
  }
}

}  // namespace tileoverlap
