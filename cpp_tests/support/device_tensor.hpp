#pragma once
// A HostTensor's counterpart on a GPU, and why there may be none.

#include <cuda_runtime_api.h>

#include <memory>
#include <string>

#include "support/host_tensor.hpp"
#include "tileoverlap/core/error.hpp"
#include "tileoverlap/execute/cuda_executor.hpp"

// Ends a test that needs a GPU where there is none.
#define TILEOVERLAP_NEEDS_GPU()                                                 \
  do {                                                                          \
    const std::string why_none = ::tileoverlap::why_no_cuda_device();           \
    if (!why_none.empty()) GTEST_SKIP() << "needs an NVIDIA GPU: " << why_none; \
  } while (false)

namespace tileoverlap::testing {

inline void cuda_ok(cudaError_t status, const char* what) {
  if (status != cudaSuccess) throw Error(std::string(what) + ": " + cudaGetErrorString(status));
}

class DeviceTensor {
 public:
  DeviceTensor() = default;
  DeviceTensor(DType dtype, std::vector<int64_t> shape, int32_t device = 0) : host_(dtype, std::move(shape)) {
    void* memory = nullptr;
    cuda_ok(cudaMalloc(&memory, host_.bytes() + 1), "cudaMalloc");
    memory_ = {memory, [](void* pointer) { (void)cudaFree(pointer); }};
    describe(device);
  }
  // With the host tensor's shape and content.
  explicit DeviceTensor(const HostTensor& from, int32_t device = 0) : DeviceTensor(from.dtype(), from.shape(), device) {
    upload(from);
  }
  DeviceTensor(DeviceTensor&&) = default;
  DeviceTensor& operator=(DeviceTensor&&) = default;

  // On return the memory holds the content. The tensor takes over the number of rows, which must fit.
  void upload(const HostTensor& from) {
    host_.set_rows(from.size(0));
    describe(dl_.device.device_id);
    cuda_ok(cudaMemcpy(memory_.get(), from.data(), from.bytes(), cudaMemcpyHostToDevice), "upload");
    finish();
  }
  HostTensor download() const {
    HostTensor result(host_.dtype(), host_.shape());
    cuda_ok(cudaMemcpy(result.data(), memory_.get(), result.bytes(), cudaMemcpyDeviceToHost), "download");
    return result;
  }
  // NaN in every row type, on return.
  void poison() {
    cuda_ok(cudaMemset(memory_.get(), 0xff, host_.bytes()), "poison");
    finish();
  }

  TensorArg arg(bool read_only = false) const { return {&dl_, read_only}; }
  DLTensor& dl() { return dl_; }
  void* data() const { return memory_.get(); }
  size_t bytes() const { return host_.bytes(); }

 private:
  // cudaMemset, and cudaMemcpy from memory that is not pinned, return before the device has it all; streams that do not
  // block on the default one would not wait for the rest.
  static void finish() { cuda_ok(cudaStreamSynchronize(nullptr), "cudaStreamSynchronize"); }
  void describe(int32_t device) {
    dl_ = host_.dl();
    dl_.data = memory_.get();
    dl_.device = {kDLCUDA, device};
  }

  HostTensor host_;  // for its shape
  std::shared_ptr<void> memory_;
  DLTensor dl_{};
};

}  // namespace tileoverlap::testing
