// In place of device_world.cpp where there is no CUDA toolkit.

#include "tileoverlap/core/error.hpp"
#include "tileoverlap/transport/device_world.hpp"

namespace tileoverlap {

std::vector<std::shared_ptr<Transport>> make_device_world(const std::vector<int32_t>&) {
  throw Error("this libtileoverlap was built without CUDA");
}

}  // namespace tileoverlap
