#pragma once
// What a device says of itself. Host code only; asking is cheap, and no context is made.

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>

#include "core/cuda_objects.hpp"
#include "core/text.hpp"

namespace tileoverlap {

inline int32_t device_attribute(cudaDeviceAttr what, int32_t device) {
  int value = 0;
  cuda_check(cudaDeviceGetAttribute(&value, what, device),
             text("reading attribute ", static_cast<int>(what), " of cuda:", device));
  return value;
}

inline int32_t sms_of(int32_t device) { return device_attribute(cudaDevAttrMultiProcessorCount, device); }

// 90 for compute capability 9.0.
inline int32_t capability_of(int32_t device) {
  return 10 * device_attribute(cudaDevAttrComputeCapabilityMajor, device) +
         device_attribute(cudaDevAttrComputeCapabilityMinor, device);
}

inline std::string device_name(int32_t device) {
  cudaDeviceProp properties;
  cuda_check(cudaGetDeviceProperties(&properties, device), text("reading the properties of cuda:", device));
  return properties.name;
}

// Of the current device's streams. Smaller numbers are more urgent.
struct StreamPriorities {
  int least = 0, greatest = 0;
};
inline StreamPriorities stream_priorities() {
  StreamPriorities priorities;
  cuda_check(cudaDeviceGetStreamPriorityRange(&priorities.least, &priorities.greatest), "reading stream priorities");
  return priorities;
}

}  // namespace tileoverlap
