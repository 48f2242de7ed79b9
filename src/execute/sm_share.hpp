#pragma once
// How a device's SMs are shared between ranks.

#include <cstdint>

#include "tileoverlap/execute/cuda_executor.hpp"

namespace tileoverlap {

struct SmShare {
  int32_t device_sms, sms;  // of the device, and of the rank
};

// Throws InvalidArgument where the GEMM and the consumer would not fit side by side.
SmShare share_of(const CudaOptions& cuda, int32_t device, int32_t ranks_on_device);

}  // namespace tileoverlap
