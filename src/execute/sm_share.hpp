#pragma once
// How a device's SMs are shared between ranks, and a rank's between the GEMM and the consumer.

#include <cstdint>

#include "tileoverlap/execute/cuda_executor.hpp"

namespace tileoverlap {

struct SmShare {
  int32_t device_sms, sms, comm_sms;  // of the device, of the rank, and of these for shipping rows
  int32_t producer_sms() const { return sms - comm_sms; }
};

// Throws InvalidArgument where the GEMM and the consumer would not fit side by side.
SmShare share_of(const CudaOptions& cuda, int32_t device, int32_t ranks_on_device);

}  // namespace tileoverlap
