// The loop-back link of a library that was built without CUDA.

#include "tileoverlap/bench/loop_back.hpp"
#include "tileoverlap/core/error.hpp"

namespace tileoverlap {

std::unique_ptr<LoopBack> make_loop_back(const Plan&, DType, int64_t, int32_t, Link) {
  throw Error("this libtileoverlap was built without CUDA");
}

}  // namespace tileoverlap
