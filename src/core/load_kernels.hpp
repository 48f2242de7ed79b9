#pragma once
// Loading kernels before their first launch, which would otherwise wait for the GPU while it loads them.

#include <initializer_list>
#include <string_view>

#include "core/cuda_objects.hpp"

namespace tileoverlap {

// Throws Error beginning with `what`.
inline void load_kernels(std::initializer_list<const void*> kernels, std::string_view what) {
  for (const void* kernel : kernels) {
    cudaFuncAttributes attributes;
    cuda_check(cudaFuncGetAttributes(&attributes, kernel), what);
  }
}

}  // namespace tileoverlap
