#include "transport/nvshmem/nvshmem_kernels.hpp"

#include "execute/link_kernels.cuh"
#include "transport/nvshmem/nvshmem_link.cuh"

namespace tileoverlap {

const LinkKernels& nvshmem_kernels() {
  static constexpr LinkKernels kKernels = link_kernels<NvshmemLink>();
  return kKernels;
}

}  // namespace tileoverlap
