// Sessions and layers over memory that somebody else has allocated and mapped.

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "support/compare.hpp"
#include "support/gpu_world.hpp"
#include "support/messages.hpp"
#include "tileoverlap/transport/mapped.hpp"

namespace tileoverlap {
namespace {

using testing::DeviceTensor;
using testing::Random;
using testing::same_bits;
using testing::Says;

constexpr int32_t kRanks = 3;
constexpr int64_t kRegionBytes = 8 << 20;

class GpuMapped : public ::testing::Test {
 protected:
  void SetUp() override {
    TILEOVERLAP_NEEDS_GPU();
    for (int32_t rank = 0; rank < kRanks; ++rank) {
      regions_.emplace_back(testing::HostTensor(DType::kInt32, {kRegionBytes / 4}));  // zeros
    }
    std::vector<void*> bases;
    for (const DeviceTensor& region : regions_) bases.push_back(region.data());
    for (int32_t rank = 0; rank < kRanks; ++rank) {
      setup_.transports.push_back(make_mapped_transport({.rank = rank,
                                                         .world = kRanks,
                                                         .device = {kDLCUDA, 0},
                                                         .bases = bases,
                                                         .bytes = kRegionBytes,
                                                         .ranks_on_device = kRanks}));
    }
  }

  static testing::Scenario scenario() {
    Random random(71);
    return make_scenario(
        random, {.placement = Placement::even(kRanks, 5), .k = 64, .n = 136, .top_k = 2, .tokens = {40, 0, 17}});
  }

  std::vector<DeviceTensor> regions_;
  testing::GpuSetup setup_;
};

TEST_F(GpuMapped, GivesTheBitsOfADeviceWorld) {
  const testing::Scenario inputs = scenario();
  const auto expected = testing::run_on_gpu(inputs, {});
  testing::GpuSessionWorld world(inputs, setup_);
  EXPECT_TRUE(same_bits(world.run(inputs), expected));
  EXPECT_TRUE(same_bits(world.run(inputs, RunMode::kSerial), expected));
}

TEST_F(GpuMapped, ALayerGivesTheBitsOfADeviceWorld) {
  Random random(72);
  const testing::LayerInputs inputs = make_layer_inputs(random, {.placement = Placement::even(kRanks, 5),
                                                                 .expert = ExpertKind::kSiluGate,
                                                                 .hidden = 136,
                                                                 .inner = 64,
                                                                 .top_k = 2,
                                                                 .tokens = {20, 9, 0}});
  const auto expected = testing::GpuLayerWorld(inputs, {}).run(inputs);
  EXPECT_TRUE(same_bits(testing::GpuLayerWorld(inputs, setup_).run(inputs), expected));
}

// Nobody compares on the host here, so the first call does on the device.
TEST_F(GpuMapped, ARankThatWasPreparedOtherwiseIsFoundInTheFirstCall) {
  const testing::Scenario inputs = scenario();
  std::vector<std::unique_ptr<Session>> sessions;
  testing::WorldSetup alike;
  alike.plan = setup_.plan;
  alike.timeout_ns = 2'000'000'000;
  SessionOptions options = session_options(inputs, alike);
  for (int32_t rank = 0; rank < kRanks; ++rank) {
    options.max_tokens = rank == 1 ? inputs.most_tokens() + 1 : inputs.most_tokens();
    sessions.push_back(make_cuda_executor(setup_.transports[static_cast<size_t>(rank)])->prepare(options));
  }
  testing::GpuSessionWorld other(inputs, {});  // for its tensors
  const testing::GpuCall call = other.make_call(inputs);
  sessions[0]->run(call.plans[0], other.args(call, 0));
  try {
    sessions[0]->synchronize();
    FAIL() << "no WaitTimeout";
  } catch (const WaitTimeout& timeout) {
    EXPECT_EQ(timeout.record().what, WaitFor::kSameTerms);
    EXPECT_THAT(timeout.what(), Says("rank 1", "other options"));
  }
}

}  // namespace
}  // namespace tileoverlap
