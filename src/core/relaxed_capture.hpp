#pragma once
// Asking the runtime while a graph is being captured somewhere in the process.

#include <cuda_runtime_api.h>

#include "core/cuda_objects.hpp"

namespace tileoverlap {

// While it lives, the calling thread may ask about work outside of a graph that is being captured somewhere.
class RelaxedCapture {
 public:
  RelaxedCapture() { cuda_check(cudaThreadExchangeStreamCaptureMode(&mode_), "relaxing the capture mode"); }
  ~RelaxedCapture() { cuda_ignore(cudaThreadExchangeStreamCaptureMode(&mode_)); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

}  // namespace tileoverlap
