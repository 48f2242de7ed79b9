// A session and a layer on virtual ranks of one GPU at the smallest sizes that use everything: also what runs under
// compute-sanitizer.

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "support/compare.hpp"
#include "support/gpu_world.hpp"
#include "tileoverlap/core/borrowed_tensor.hpp"

namespace tileoverlap {
namespace {

using testing::close_to;
using testing::Random;
using testing::same_bits;

// Views of each expert's matrix.
std::vector<std::unique_ptr<BorrowedTensor>> apart(const testing::DeviceTensor& all, const testing::HostTensor& like) {
  std::vector<std::unique_ptr<BorrowedTensor>> views;
  const auto bytes = static_cast<int64_t>(like.bytes()) / like.size(0);
  for (int64_t expert = 0; expert < like.size(0); ++expert) {
    views.push_back(std::make_unique<BorrowedTensor>(
        static_cast<const void*>(static_cast<std::byte*>(all.data()) + expert * bytes), like.dtype(),
        std::initializer_list<int64_t>{like.size(1), like.size(2)}, DLDevice{kDLCUDA, 0}));
  }
  return views;
}

std::vector<TensorArg> args_of(const std::vector<std::unique_ptr<BorrowedTensor>>& tensors) {
  std::vector<TensorArg> args;
  for (const auto& tensor : tensors) args.push_back(*tensor);
  return args;
}

class GpuSmall : public ::testing::TestWithParam<DType> {
 protected:
  void SetUp() override { TILEOVERLAP_NEEDS_GPU(); }
};
INSTANTIATE_TEST_SUITE_P(Types, GpuSmall, ::testing::Values(DType::kBFloat16, DType::kFloat16),
                         [](const auto& test) { return std::string(name(test.param)); });

TEST_P(GpuSmall, SessionGivesTheSumInBothModes) {
  Random random(1);
  testing::Scenario scenario = make_scenario(random, {.placement = Placement::from_begins({0, 2, 2, 5}),
                                                      .dtype = GetParam(),
                                                      .k = 72,
                                                      .n = 264,
                                                      .top_k = 2,
                                                      .tokens = {100, 3, 0}});
  testing::GpuSetup setup;
  setup.cuda[0].faults.poison = true;
  testing::GpuSessionWorld world(scenario, setup);
  const auto outs = world.run(scenario);
  EXPECT_TRUE(same_bits(outs, world.run(scenario, RunMode::kSerial)));
  for (int32_t rank = 0; rank < 3; ++rank) {
    EXPECT_TRUE(close_to(outs[static_cast<size_t>(rank)], fp64_result(scenario, rank))) << "rank " << rank;
  }
}

TEST_P(GpuSmall, LayerGivesTheSumForAllKindsOfExpert) {
  for (const ExpertKind expert : {ExpertKind::kSingle, ExpertKind::kGelu, ExpertKind::kSiluGate}) {
    Random random(2);
    const testing::LayerInputs inputs = make_layer_inputs(random, {.placement = Placement::from_begins({0, 2, 5}),
                                                                   .dtype = GetParam(),
                                                                   .expert = expert,
                                                                   .hidden = 136,
                                                                   .inner = 72,
                                                                   .top_k = 2,
                                                                   .tokens = {70, 9}});
    testing::GpuSetup setup;
    setup.cuda[0].faults.poison = true;
    testing::GpuLayerWorld world(inputs, setup);
    const auto outs = world.run(inputs);
    EXPECT_TRUE(same_bits(outs, world.run(inputs, RunMode::kSerial))) << name(expert);
    for (int32_t rank = 0; rank < 2; ++rank) {
      EXPECT_TRUE(close_to(outs[static_cast<size_t>(rank)], fp64_layer_result(inputs, rank)))
          << name(expert) << ", rank " << rank;
    }
  }
}

TEST_P(GpuSmall, WeightsMayLieApart) {
  for (const ExpertKind expert : {ExpertKind::kGelu, ExpertKind::kSiluGate}) {
    Random random(3);
    const testing::LayerInputs inputs = make_layer_inputs(random, {.placement = Placement::even(2, 5),
                                                                   .dtype = GetParam(),
                                                                   .expert = expert,
                                                                   .hidden = 136,
                                                                   .inner = 72,
                                                                   .top_k = 2,
                                                                   .tokens = {40, 9}});
    testing::GpuLayerWorld world(inputs, {});
    const auto expected = world.run(inputs);
    for (int round = 0; round < 3; ++round) {  // a second set of pointers, then the first again
      const testing::GpuLayerCall call = world.make_call(inputs), other = world.make_call(inputs);
      for (int32_t rank = 0; rank < 2; ++rank) {
        const auto r = static_cast<size_t>(rank);
        const auto up = apart(round == 1 ? other.up[r] : call.up[r], inputs.up[r]);
        const auto down = apart(round == 1 ? other.down[r] : call.down[r], inputs.down[r]);
        LayerArgs args = world.args(call, rank);
        const auto up_args = args_of(up), down_args = args_of(down);
        args.up = std::span<const TensorArg>(up_args);
        args.down = std::span<const TensorArg>(down_args);
        world.layer(rank).forward(args);
      }
      world.synchronize_all();
      EXPECT_TRUE(same_bits(world.outs(call), expected)) << name(expert) << ", round " << round;
    }
  }
}

}  // namespace
}  // namespace tileoverlap
