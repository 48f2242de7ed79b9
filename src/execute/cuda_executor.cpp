#include "tileoverlap/execute/cuda_executor.hpp"

#include <limits>

#include "core/cuda_objects.hpp"
#include "core/text.hpp"
#include "execute/cuda_session.hpp"
#include "produce/gpu_producer.hpp"

namespace tileoverlap {
namespace {

class CudaExecutor final : public Executor {
 public:
  CudaExecutor(std::shared_ptr<Transport> transport, const CudaOptions& options)
      : transport_(std::move(transport)), options_(options) {}

  std::unique_ptr<Session> prepare(const SessionOptions& options) override {
    return make_cuda_session(transport_, options_, options);
  }
  std::unique_ptr<MoeLayer> prepare_layer(const LayerOptions& options) override {
    return make_cuda_layer(transport_, options_, options);
  }
  std::string repr() const override {
    return text("CudaExecutor(", transport_->repr(), ", device=cuda:", transport_->device().device_id,
                ", sms=", options_.sms, ", comm_sms=", options_.comm_sms, ")");
  }

 private:
  std::shared_ptr<Transport> transport_;
  CudaOptions options_;
};

}  // namespace

std::string why_no_cuda_device() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess) {
    (void)cudaGetLastError();
    return text(cudaGetErrorString(status), " (", cudaGetErrorName(status), ")");
  }
  return count == 0 ? "the driver knows no device" : "";
}

std::vector<CudaDevice> cuda_devices() {
  std::vector<CudaDevice> devices;
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    (void)cudaGetLastError();
    return devices;
  }
  for (int number = 0; number < count; ++number) {
    cudaDeviceProp properties;
    cuda_check(cudaGetDeviceProperties(&properties, number), text("reading the properties of cuda:", number));
    const int32_t capability = 10 * properties.major + properties.minor;
    devices.push_back({.number = number,
                       .name = properties.name,
                       .capability = capability,
                       .sms = properties.multiProcessorCount,
                       .memory_bytes = static_cast<int64_t>(properties.totalGlobalMem),
                       .bfloat16_tiles = producer_tiles(capability, DType::kBFloat16)});
  }
  return devices;
}

std::unique_ptr<Executor> make_cuda_executor(std::shared_ptr<Transport> transport, const CudaOptions& options) {
  if (transport == nullptr) throw InvalidArgument("transport is missing");
  if (transport->device().device_type != kDLCUDA) {
    throw InvalidArgument(text("the CUDA executor needs a transport with memory on a GPU, got ", transport->repr()));
  }
  if (options.sms < 0 || options.comm_sms < 0) {
    throw InvalidArgument(text("sms and comm_sms must not be negative, got ", options.sms, " and ", options.comm_sms));
  }
  if (options.faults.first_epoch > std::numeric_limits<uint64_t>::max() / 2) {
    throw InvalidArgument(text("first_epoch must be below 2^63, got ", options.faults.first_epoch));
  }
  if (options.faults.max_delay_us < 0) {
    throw InvalidArgument(text("max_delay_us must not be negative, got ", options.faults.max_delay_us));
  }
  return std::make_unique<CudaExecutor>(std::move(transport), options);
}

}  // namespace tileoverlap
