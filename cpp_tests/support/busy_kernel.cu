#include <algorithm>
#include <string>

#include "support/busy_kernel.hpp"
#include "tileoverlap/core/error.hpp"

namespace tileoverlap::testing {
namespace {

constexpr int kThreads = 256;

void must(cudaError_t status, const char* what) {
  if (status != cudaSuccess) throw Error(std::string(what) + ": " + cudaGetErrorString(status));
}

int attribute(cudaDeviceAttr what) {
  int device = 0, value = 0;
  must(cudaGetDevice(&device), "cudaGetDevice");
  must(cudaDeviceGetAttribute(&value, what, device), "cudaDeviceGetAttribute");
  return value;
}

__device__ uint64_t global_timer_ns() {
  uint64_t ns;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
  return ns;
}

__global__ void busy_kernel(uint64_t duration_ns) {
  const uint64_t begin = global_timer_ns();
  while (global_timer_ns() - begin < duration_ns) __nanosleep(1000);
}

__global__ void mismatch_kernel(const uint8_t* got, const uint8_t* expected, size_t bytes,
                                unsigned long long* mismatches) {
  const size_t step = static_cast<size_t>(gridDim.x) * kThreads;
  unsigned long long found = 0;
  for (size_t i = static_cast<size_t>(blockIdx.x) * kThreads + threadIdx.x; i < bytes; i += step) {
    found += got[i] != expected[i] ? 1 : 0;
  }
  if (found != 0) atomicAdd(mismatches, found);
}

}  // namespace

void load_busy_kernels() {
  // All of an SM's shared memory that one block may have.
  must(cudaFuncSetAttribute(busy_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                            attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin)),
       "loading busy_kernel");
  cudaFuncAttributes attributes;
  must(cudaFuncGetAttributes(&attributes, mismatch_kernel), "loading mismatch_kernel");
  must(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

void keep_busy(int32_t sms, int64_t duration_ns, cudaStream_t stream) {
  if (duration_ns > kLongestBusyNs) throw Error("keep_busy: " + std::to_string(duration_ns) + " ns is too long");
  const int blocks = sms == 0 ? attribute(cudaDevAttrMultiProcessorCount) : sms;
  const auto shared = static_cast<size_t>(attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin));
  busy_kernel<<<blocks, 32, shared, stream>>>(static_cast<uint64_t>(duration_ns));
  must(cudaGetLastError(), "launching busy_kernel");
}

void count_mismatches(const void* got, const void* expected, size_t bytes, uint64_t* mismatches, cudaStream_t stream) {
  if (bytes == 0) return;
  constexpr size_t kBytesPerBlock = 16 * kThreads, kMostBlocks = 16;
  const auto blocks = static_cast<int>(std::min(kMostBlocks, (bytes + kBytesPerBlock - 1) / kBytesPerBlock));
  static_assert(sizeof(uint64_t) == sizeof(unsigned long long));
  mismatch_kernel<<<blocks, kThreads, 0, stream>>>(static_cast<const uint8_t*>(got),
                                                   static_cast<const uint8_t*>(expected), bytes,
                                                   reinterpret_cast<unsigned long long*>(mismatches));
  must(cudaGetLastError(), "launching mismatch_kernel");
}

}  // namespace tileoverlap::testing
