#pragma once
// Devices in messages.

#include <dlpack/dlpack.h>

#include <string>

#include "core/text.hpp"

namespace tileoverlap {

// "cuda:1".
inline std::string device_text(DLDevice device) {
  if (device.device_type == kDLCPU) return text("cpu:", device.device_id);
  if (device.device_type == kDLCUDA) return text("cuda:", device.device_id);
  return text("device type ", static_cast<int>(device.device_type), ":", device.device_id);
}

}  // namespace tileoverlap
