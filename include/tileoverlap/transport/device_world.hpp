#pragma once
// W ranks inside one process, on CUDA devices that reach each other's memory.

#include <cstdint>
#include <memory>
#include <vector>

#include "tileoverlap/transport/transport.hpp"

namespace tileoverlap {

// Makes the transports of all ranks of a new world; element r is the rank on CUDA device devices[r]. A device may be
// named several times: its ranks then share it. The transports share the world's state, which lives as long as any of
// them or any memory allocated through them.
//
// Enables access of the devices to each other, for the whole process; allocates nothing. allocate() calls cudaMalloc;
// letting go of the last handle calls cudaFree, which waits for all work of the device.
//
// Errors: InvalidArgument where `devices` is empty, names a device that is not there, or two that cannot reach each
// other's memory; Error where no CUDA device can be used, and where the library was built without CUDA.
TILEOVERLAP_API std::vector<std::shared_ptr<Transport>> make_device_world(const std::vector<int32_t>& devices);

}  // namespace tileoverlap
