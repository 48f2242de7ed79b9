// What must hold before a GPU test binary makes its CUDA context.

#include <gtest/gtest.h>

#include <cstdlib>

namespace tileoverlap::testing {
namespace {

// W virtual ranks on one GPU have several streams each. With the default of 8 hardware queues two ranks' streams would
// share one, and a rank's kernels would wait behind those of the rank that waits for them. One rank a GPU, as in real
// use, has three streams and needs nothing of the kind.
class ManyQueues : public ::testing::Environment {
 public:
  void SetUp() override { setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", /*overwrite=*/0); }
};

const ::testing::Environment* const kManyQueues = ::testing::AddGlobalTestEnvironment(new ManyQueues);

}  // namespace
}  // namespace tileoverlap::testing
