#pragma once
// The kernels of a call that reach peers over NVSHMEM.

#include "execute/link_kernels.hpp"

namespace tileoverlap {

const LinkKernels& nvshmem_kernels();

}  // namespace tileoverlap
