// Weights as one tensor an expert, wherever they lie, give what one tensor of all experts gives.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "support/compare.hpp"
#include "support/layer_world.hpp"
#include "support/messages.hpp"
#include "support/session_world.hpp"

namespace tileoverlap {
namespace {

using testing::HostTensor;
using testing::Random;
using testing::same_bits;

// A copy of each expert's matrix in memory of its own, in reverse order of allocation.
class Apart {
 public:
  explicit Apart(const HostTensor& all) {
    const auto experts = static_cast<size_t>(all.size(0));
    for (size_t i = 0; i < experts; ++i) {
      matrices_.emplace_back(all.dtype(), std::vector<int64_t>{all.size(1), all.size(2)});
    }
    for (size_t i = experts; i-- > 0;) {
      std::memcpy(matrices_[i].data(), all.data() + i * matrices_[i].bytes(), matrices_[i].bytes());
    }
    for (HostTensor& matrix : matrices_) args_.push_back(matrix.arg(true));
  }
  std::span<const TensorArg> args() const { return args_; }
  HostTensor& matrix(size_t expert) { return matrices_[expert]; }

 private:
  std::vector<HostTensor> matrices_;
  std::vector<TensorArg> args_;
};

TEST(ExpertWeights, OneTensorAnExpertGivesTheSameBitsInASession) {
  Random random(51);
  const testing::Scenario scenario = make_scenario(
      random, {.placement = Placement::from_begins({0, 3, 3, 5}), .k = 16, .n = 24, .top_k = 2, .tokens = {9, 4, 0}});
  testing::SessionWorld world(scenario, {});
  const auto expected = world.run(scenario);
  testing::Call call = world.make_call(scenario);
  std::vector<Apart> apart;
  for (const HostTensor& weights : scenario.weights) apart.emplace_back(weights);
  for (int32_t rank = 0; rank < 3; ++rank) {
    RunArgs args = testing::SessionWorld::args(scenario, call, rank);
    if (scenario.placement.experts_on(rank) > 0) args.weights = apart[static_cast<size_t>(rank)].args();
    world.session(rank).run(call.plans[static_cast<size_t>(rank)], args);
  }
  world.synchronize_all();
  EXPECT_TRUE(same_bits(call.outs, expected));
}

TEST(ExpertWeights, OneTensorAnExpertGivesTheSameBitsInALayer) {
  for (const ExpertKind expert : {ExpertKind::kGelu, ExpertKind::kSiluGate}) {
    Random random(52);
    const testing::LayerInputs inputs = make_layer_inputs(random, {.placement = Placement::even(2, 5),
                                                                   .expert = expert,
                                                                   .hidden = 24,
                                                                   .inner = 16,
                                                                   .top_k = 2,
                                                                   .tokens = {7, 3}});
    testing::LayerWorld world(inputs, {});
    const auto expected = world.run(inputs);
    const auto outs = testing::LayerWorld::make_outs(inputs);
    std::vector<Apart> up, down;
    for (int32_t rank = 0; rank < 2; ++rank) {
      up.emplace_back(inputs.up[static_cast<size_t>(rank)]);
      down.emplace_back(inputs.down[static_cast<size_t>(rank)]);
    }
    for (int32_t rank = 0; rank < 2; ++rank) {
      LayerArgs args = testing::LayerWorld::args(inputs, outs, rank);
      args.up = up[static_cast<size_t>(rank)].args();
      args.down = down[static_cast<size_t>(rank)].args();
      world.layer(rank).forward(args);
    }
    world.synchronize_all();
    EXPECT_TRUE(same_bits(outs, expected)) << name(expert);
  }
}

TEST(ExpertWeights, ListsThatDoNotFitAreRefusedByName) {
  Random random(53);
  const testing::Scenario scenario =
      make_scenario(random, {.placement = Placement::even(1, 3), .k = 16, .n = 24, .top_k = 1, .tokens = {4}});
  testing::SessionWorld world(scenario, {});
  const testing::Call call = world.make_call(scenario);
  Apart apart(scenario.weights[0]);
  const auto refusal = [&](std::span<const TensorArg> weights) -> std::string {
    RunArgs args = testing::SessionWorld::args(scenario, call, 0);
    args.weights = weights;
    try {
      world.session(0).run(call.plans[0], args);
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(refusal(apart.args().first(2)), testing::Says("weights", "3 tensors", "got 2"));
  HostTensor wide(scenario.dtype, {24, 32});
  int64_t strides[] = {32, 1}, shape[] = {24, 16};
  wide.dl().strides = strides;
  wide.dl().shape = shape;
  const TensorArg unlike[] = {apart.args()[0], wide.arg(), apart.args()[2]};
  EXPECT_THAT(refusal(unlike), testing::Says("weights[1]", "32", "16"));
  const HostTensor narrow(scenario.dtype, {24, 8});
  const TensorArg small[] = {apart.args()[0], apart.args()[1], narrow.arg()};
  EXPECT_THAT(refusal(small), testing::Says("weights[2]", "[24, 16]", "[24, 8]"));
}

}  // namespace
}  // namespace tileoverlap
