// Ranks on CUDA devices, in a library without CUDA.

#include <gtest/gtest.h>

#include "support/messages.hpp"
#include "tileoverlap/core/error.hpp"
#include "tileoverlap/transport/device_world.hpp"

namespace tileoverlap {
namespace {

TEST(DeviceWorld, IsRefusedWhereTheLibraryWasBuiltWithoutCuda) {
  EXPECT_THAT(testing::message_of<Error>([] { make_device_world({0}); }), testing::Says("built without CUDA"));
}

}  // namespace
}  // namespace tileoverlap
