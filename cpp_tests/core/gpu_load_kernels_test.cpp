// Kernels that the library does not have for the device at hand.

#include "core/load_kernels.hpp"

#include <gtest/gtest.h>

#include <string>

#include "support/foreign_kernel.hpp"
#include "support/gpu_world.hpp"
#include "support/messages.hpp"

namespace tileoverlap {
namespace {

using testing::message_of;
using testing::Says;

// D13.6: both sides are named before the first call.
TEST(GpuLoadKernels, NamesTheDeviceAndWhatTheLibraryWasBuiltFor) {
  TILEOVERLAP_NEEDS_GPU();
  const int32_t capability = capability_of(0);
  if (capability == 75) GTEST_SKIP() << "the device is the other chip";
  const std::string device = text("compute capability ", capability / 10, ".", capability % 10);
  EXPECT_THAT(message_of<Error>([] { load_kernels({testing::kernel_of_another_chip()}, "loading"); }),
              Says("loading", "cuda:0", device, TILEOVERLAP_BUILT_FOR));
  // The next call meets no error of this one.
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

}  // namespace
}  // namespace tileoverlap
