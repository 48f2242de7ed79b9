// In place of nvshmem_world.cpp where the library is built without CUDA or without NVSHMEM.

#include "tileoverlap/core/error.hpp"
#include "tileoverlap/transport/nvshmem.hpp"

namespace tileoverlap {

std::shared_ptr<NvshmemWorld> start_nvshmem(const NvshmemOptions&) {
  throw Error("this libtileoverlap was built without NVSHMEM");
}

}  // namespace tileoverlap
