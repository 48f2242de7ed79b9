#pragma once
// Kernels of the tests themselves: one that keeps SMs from everybody else for a while, and one that compares on the
// device, so that thousands of results need not come back to the host.

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace tileoverlap::testing {

// Loads both, so that no launch has to while other kernels wait for each other. Waits for the device.
void load_busy_kernels();

inline constexpr int64_t kLongestBusyNs = 50'000'000;

// Fills `sms` SMs (0: all of the device) for `duration_ns` from when it gets them: nothing that needs shared memory
// fits beside it. Throws where the duration is longer than kLongestBusyNs.
void keep_busy(int32_t sms, int64_t duration_ns, cudaStream_t stream);

// Adds the number of bytes that differ to *mismatches, in device memory.
void count_mismatches(const void* got, const void* expected, size_t bytes, uint64_t* mismatches, cudaStream_t stream);

}  // namespace tileoverlap::testing
