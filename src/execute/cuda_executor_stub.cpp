// The CUDA executor of a library that was built without CUDA.

#include "tileoverlap/execute/cuda_executor.hpp"

namespace tileoverlap {
namespace {

constexpr const char* kWithoutCuda = "this libtileoverlap was built without CUDA";

}  // namespace

std::string why_no_cuda_device() { return kWithoutCuda; }

std::vector<CudaDevice> cuda_devices() { return {}; }

std::unique_ptr<Executor> make_cuda_executor(std::shared_ptr<Transport>, const CudaOptions&) {
  throw Error(kWithoutCuda);
}

}  // namespace tileoverlap
