#pragma once
// What the CUDA runtime lends, as objects that give it back. Host code only.
//
// A thread's current device is 0 until it chooses one, and to switch back to a device makes a context there (CUDA 12
// and newer). So threads of the library's own call cudaSetDevice once, first thing; the objects below switch only where
// the current device is another one.

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <string>
#include <string_view>
#include <utility>

#include "core/text.hpp"
#include "tileoverlap/core/error.hpp"

namespace tileoverlap {

// Throws Error: "cudaMalloc of 4096 bytes on cuda:0: out of memory (cudaErrorMemoryAllocation)". Takes the error off
// the runtime's record, so that whoever asks for the last error next does not find one that has been reported.
inline void cuda_check(cudaError_t status, std::string_view what) {
  if (status == cudaSuccess) return;
  (void)cudaGetLastError();
  throw Error(text(what, ": ", cudaGetErrorString(status), " (", cudaGetErrorName(status), ")"));
}

// For destructors: at the end of the process the runtime may be gone before our objects (cudaErrorCudartUnloading), and
// errors of earlier work come up again in every call.
inline void cuda_ignore(cudaError_t status) noexcept {
  if (status != cudaSuccess) (void)cudaGetLastError();
}

// Makes a device the calling thread's current one and, when it goes, the former one again.
class DeviceGuard {
 public:
  explicit DeviceGuard(int32_t device) {
    cuda_check(cudaGetDevice(&former_), "cudaGetDevice");
    if (former_ == device) return;
    cuda_check(cudaSetDevice(device), text("cudaSetDevice to cuda:", device));
    switched_ = true;
  }
  // For destructors.
  DeviceGuard(int32_t device, std::nothrow_t) noexcept {
    const cudaError_t status = cudaGetDevice(&former_);
    cuda_ignore(status);
    if (status != cudaSuccess || former_ == device) return;
    const cudaError_t set = cudaSetDevice(device);
    cuda_ignore(set);
    switched_ = set == cudaSuccess;
  }
  ~DeviceGuard() {
    if (switched_) cuda_ignore(cudaSetDevice(former_));
  }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int former_ = 0;
  bool switched_ = false;
};

// A stream that does not wait for the legacy default stream, nor that for it. Priorities count as CUDA's do: 0 is the
// lowest, smaller ones are more urgent, and what the device does not know is cut to what it knows.
class Stream {
 public:
  Stream() = default;
  explicit Stream(int32_t device, int32_t priority = 0) : device_(device) {
    const DeviceGuard guard(device);
    cuda_check(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, priority),
               text("cudaStreamCreateWithPriority on cuda:", device));
  }
  Stream(Stream&& other) noexcept
      : device_(std::exchange(other.device_, -1)), stream_(std::exchange(other.stream_, nullptr)) {}
  Stream& operator=(Stream other) noexcept {
    std::swap(device_, other.device_);
    std::swap(stream_, other.stream_);
    return *this;
  }
  // Does not wait for the stream's work, which completes all the same.
  ~Stream() {
    if (stream_ == nullptr) return;
    const DeviceGuard guard(device_, std::nothrow);
    cuda_ignore(cudaStreamDestroy(stream_));
  }
  cudaStream_t get() const { return stream_; }
  int32_t device() const { return device_; }
  void synchronize() const { cuda_check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize"); }

 private:
  int32_t device_ = -1;
  cudaStream_t stream_ = nullptr;
};

// A mark in a stream, without time. Until it has been recorded it counts as reached.
class Event {
 public:
  Event() = default;
  explicit Event(int32_t device) : device_(device) {
    const DeviceGuard guard(device);
    cuda_check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming),
               text("cudaEventCreateWithFlags on cuda:", device));
  }
  Event(Event&& other) noexcept
      : device_(std::exchange(other.device_, -1)), event_(std::exchange(other.event_, nullptr)) {}
  Event& operator=(Event other) noexcept {
    std::swap(device_, other.device_);
    std::swap(event_, other.event_);
    return *this;
  }
  ~Event() {
    if (event_ == nullptr) return;
    const DeviceGuard guard(device_, std::nothrow);
    cuda_ignore(cudaEventDestroy(event_));
  }
  cudaEvent_t get() const { return event_; }
  // `stream` must be of this event's device.
  void record(cudaStream_t stream) { cuda_check(cudaEventRecord(event_, stream), "cudaEventRecord"); }
  // Later work of `stream`, of whatever device, waits for the mark.
  void hold(cudaStream_t stream) const { cuda_check(cudaStreamWaitEvent(stream, event_, 0), "cudaStreamWaitEvent"); }
  bool reached() const {
    const cudaError_t status = cudaEventQuery(event_);
    if (status == cudaErrorNotReady) {
      (void)cudaGetLastError();
      return false;
    }
    cuda_check(status, "cudaEventQuery");
    return true;
  }

 private:
  int32_t device_ = -1;
  cudaEvent_t event_ = nullptr;
};

// Zeroed device memory, aligned to 256 bytes. None at all (null) for 0 bytes.
class DeviceBytes {
 public:
  DeviceBytes() = default;
  // The zeroes are there on return. They are written by a stream of their own: the legacy stream would wait for all
  // blocking streams of the device, and kernels there may wait for what this thread does next.
  DeviceBytes(int32_t device, size_t bytes) : device_(device), bytes_(bytes) {
    if (bytes == 0) return;
    const DeviceGuard guard(device);
    const Stream stream(device);
    void* memory = nullptr;
    cuda_check(cudaMalloc(&memory, bytes), text("cudaMalloc of ", bytes, " bytes on cuda:", device));
    data_ = static_cast<std::byte*>(memory);
    try {
      cuda_check(cudaMemsetAsync(memory, 0, bytes, stream.get()),
                 text("cudaMemsetAsync of ", bytes, " bytes on cuda:", device));
      stream.synchronize();
    } catch (...) {
      cuda_ignore(cudaFree(memory));  // the destructor of an object that never was does not run
      throw;
    }
  }
  DeviceBytes(DeviceBytes&& other) noexcept
      : device_(std::exchange(other.device_, -1)),
        bytes_(std::exchange(other.bytes_, 0)),
        data_(std::exchange(other.data_, nullptr)) {}
  DeviceBytes& operator=(DeviceBytes other) noexcept {
    std::swap(device_, other.device_);
    std::swap(bytes_, other.bytes_);
    std::swap(data_, other.data_);
    return *this;
  }
  // Waits for all work of the device, as cudaFree does.
  ~DeviceBytes() {
    if (data_ == nullptr) return;
    const DeviceGuard guard(device_, std::nothrow);
    cuda_ignore(cudaFree(data_));
  }
  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  int32_t device() const { return device_; }

 private:
  int32_t device_ = -1;
  size_t bytes_ = 0;
  std::byte* data_ = nullptr;
};

// Zeroed host memory that all devices can read and write. None at all (null) for 0 bytes.
class PinnedBytes {
 public:
  PinnedBytes() = default;
  // `device`: whose context makes it.
  PinnedBytes(int32_t device, size_t bytes) : device_(device), bytes_(bytes) {
    if (bytes == 0) return;
    const DeviceGuard guard(device);
    void *host = nullptr, *mapped = nullptr;
    cuda_check(cudaHostAlloc(&host, bytes, cudaHostAllocMapped | cudaHostAllocPortable),
               text("cudaHostAlloc of ", bytes, " bytes for cuda:", device));
    const cudaError_t status = cudaHostGetDevicePointer(&mapped, host, 0);
    if (status != cudaSuccess) {
      cuda_ignore(cudaFreeHost(host));
      cuda_check(status, text("cudaHostGetDevicePointer for cuda:", device));
    }
    std::memset(host, 0, bytes);
    host_ = static_cast<std::byte*>(host);
    mapped_ = static_cast<std::byte*>(mapped);
  }
  PinnedBytes(PinnedBytes&& other) noexcept
      : device_(std::exchange(other.device_, -1)),
        bytes_(std::exchange(other.bytes_, 0)),
        host_(std::exchange(other.host_, nullptr)),
        mapped_(std::exchange(other.mapped_, nullptr)) {}
  PinnedBytes& operator=(PinnedBytes other) noexcept {
    std::swap(device_, other.device_);
    std::swap(bytes_, other.bytes_);
    std::swap(host_, other.host_);
    std::swap(mapped_, other.mapped_);
    return *this;
  }
  // Waits for all work of the device, as cudaFreeHost does.
  ~PinnedBytes() {
    if (host_ == nullptr) return;
    const DeviceGuard guard(device_, std::nothrow);
    cuda_ignore(cudaFreeHost(host_));
  }
  std::byte* host() const { return host_; }
  std::byte* device_pointer() const { return mapped_; }
  size_t bytes() const { return bytes_; }

 private:
  int32_t device_ = -1;
  size_t bytes_ = 0;
  std::byte *host_ = nullptr, *mapped_ = nullptr;
};

}  // namespace tileoverlap
