// The whole layer: against an fp64 reference, against a session fed by hand, and bit for bit over all ways to run it.

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "support/build_kind.hpp"
#include "support/compare.hpp"
#include "support/layer_world.hpp"

namespace tileoverlap {
namespace {

using testing::as_scenario;
using testing::LayerInputs;
using testing::LayerWorld;
using testing::make_layer_inputs;
using testing::Random;
using testing::same_bits;
using testing::Scenario;
using testing::WorldSetup;

constexpr ExpertKind kKinds[] = {ExpertKind::kSingle, ExpertKind::kGelu, ExpertKind::kSiluGate};
constexpr DType kTypes[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};

class LayerKinds : public ::testing::TestWithParam<std::tuple<ExpertKind, DType>> {
 protected:
  LayerInputs inputs(uint64_t seed) const {
    Random random(seed);
    return make_layer_inputs(random, {.placement = Placement::from_begins({0, 3, 3, 7}),
                                      .dtype = std::get<1>(GetParam()),
                                      .expert = std::get<0>(GetParam()),
                                      .hidden = 48,
                                      .inner = 72,
                                      .top_k = 3,
                                      .tokens = {13, 9, 17}});
  }
};
INSTANTIATE_TEST_SUITE_P(Layer, LayerKinds,
                         ::testing::Combine(::testing::ValuesIn(kKinds), ::testing::ValuesIn(kTypes)),
                         [](const auto& test) {
                           return std::string(name(std::get<0>(test.param))) + "_" + name(std::get<1>(test.param));
                         });

TEST_P(LayerKinds, AgreeWithTheFp64Reference) {
  const LayerInputs layer = inputs(1);
  WorldSetup setup;
  setup.cpu = {{.producer_threads = 2, .faults = {.poison = true}}};
  const auto outs = LayerWorld(layer, setup).run(layer);
  for (int32_t rank = 0; rank < 3; ++rank) {
    EXPECT_TRUE(close_to(outs[static_cast<size_t>(rank)], fp64_layer_result(layer, rank))) << "rank " << rank;
  }
}

TEST_P(LayerKinds, GiveTheSameBitsHoweverTheyAreRun) {
  const LayerInputs layer = inputs(2);
  const auto expected = LayerWorld(layer, {}).run(layer);
  Random random(3);
  for (int round = 0; round < 8; ++round) {
    WorldSetup setup{.plan = {.tile_m = random.between32(1, 20),
                              .tile_n = random.between32(1, 80),
                              .layout = round % 2 == 0 ? Layout::kOwnerAligned : Layout::kCompact,
                              .bands_per_segment = random.between32(1, 3),
                              .group = random.between32(1, 4)}};
    setup.cpu = {{.producer_threads = random.between32(1, 3),
                  .consumer_threads = random.between32(1, 3),
                  .faults = {.shuffle_seed = random.bits(), .max_delay_us = round < 3 ? 50 : 0, .poison = true}}};
    const RunMode mode = round % 3 == 0 ? RunMode::kSerial : RunMode::kOverlapped;
    ASSERT_TRUE(same_bits(LayerWorld(layer, setup).run(layer, mode), expected)) << repr(setup.plan);
  }
}

TEST_P(LayerKinds, KeepCallsApart) {
  LayerInputs layer = inputs(4);
  WorldSetup setup;
  setup.cpu = {{.producer_threads = 2,
                .consumer_threads = 2,
                .faults = {.shuffle_seed = 5, .max_delay_us = 20, .poison = true}}};
  LayerWorld world(layer, setup);
  Random random(6);
  for (const std::vector<int64_t>& tokens :
       {std::vector<int64_t>{13, 9, 17}, {0, 3, 1}, {13, 0, 17}, {0, 0, 0}, {1, 1, 1}}) {
    draw_layer_tokens(random, layer, tokens);
    const auto outs = world.run(layer);
    for (int32_t rank = 0; rank < 3; ++rank) {
      ASSERT_TRUE(close_to(outs[static_cast<size_t>(rank)], fp64_layer_result(layer, rank)));
    }
  }
}

TEST(Layer, EqualsASessionThatIsFedByHand) {
  Random random(11);
  const int rounds = testing::kSanitized ? 8 : 25;
  for (int round = 0; round < rounds; ++round) {
    const auto shapes = testing::random_shapes(random);
    const LayerInputs layer = make_layer_inputs(random, {.placement = shapes.placement,
                                                         .dtype = shapes.dtype,
                                                         .expert = ExpertKind::kSingle,
                                                         .hidden = shapes.n,
                                                         .inner = shapes.k,
                                                         .top_k = shapes.top_k,
                                                         .tokens = shapes.tokens});
    const Scenario scenario = as_scenario(layer);
    const auto by_layer = LayerWorld(layer, {}).run(layer);
    ASSERT_TRUE(same_bits(by_layer, run_once(scenario, {}))) << "round " << round;
    ASSERT_TRUE(same_bits(by_layer, exact_results(scenario))) << "round " << round;
  }
}

TEST(Layer, OfRandomShapesAgreesWithTheFp64Reference) {
  Random random(12);
  const int rounds = testing::kSanitized ? 10 : 40;
  for (int round = 0; round < rounds; ++round) {
    const auto shapes = testing::random_shapes(random);
    const LayerInputs layer = make_layer_inputs(random, {.placement = shapes.placement,
                                                         .dtype = shapes.dtype,
                                                         .expert = kKinds[round % 3],
                                                         .hidden = shapes.n,
                                                         .inner = shapes.k,
                                                         .top_k = shapes.top_k,
                                                         .tokens = shapes.tokens});
    WorldSetup setup{.plan = {.tile_m = random.between32(1, 9), .tile_n = random.between32(1, 30)}};
    setup.cpu = {{.producer_threads = 2, .faults = {.shuffle_seed = random.bits(), .poison = true}}};
    const auto outs = LayerWorld(layer, setup).run(layer);
    for (int32_t rank = 0; rank < shapes.placement.world(); ++rank) {
      ASSERT_TRUE(close_to(outs[static_cast<size_t>(rank)], fp64_layer_result(layer, rank)))
          << "round " << round << ", rank " << rank << ", " << name(layer.shapes.expert);
    }
  }
}

TEST(Layer, ComputesTheExactGelu) {
  // One token, one expert, up and down the identity: out = gelu(x). The tanh form differs from 3e-4 on.
  Random random(13);
  LayerInputs layer = make_layer_inputs(
      random, {.dtype = DType::kFloat32, .expert = ExpertKind::kGelu, .hidden = 8, .inner = 8, .tokens = {1}});
  layer.up[0].fill(0);
  layer.down[0].fill(0);
  for (int64_t i = 0; i < 8; ++i) {
    layer.up[0].put(i * 9, 1);
    layer.down[0].put(i * 9, 1);
  }
  const float x[] = {-6, -2, -1, -0.5f, 0, 1, 2.25f, 6};
  const double gelu[] = {-5.9195268e-09, -0.045500264, -0.15865525, -0.15426877, 0, 0.84134475, 2.2224949, 6};
  for (int64_t i = 0; i < 8; ++i) layer.x[0].put(i, x[i]);
  layer.ids[0].put(0, 0);
  layer.gates[0].put(0, 1);
  const auto outs = LayerWorld(layer, {}).run(layer);
  for (int64_t i = 0; i < 8; ++i) EXPECT_NEAR(outs[0].get(i), gelu[i], 1e-6) << "x = " << x[i];
}

TEST(Layer, MultipliesTheSiluOfTheFirstHalfWithTheSecond) {
  Random random(14);
  LayerInputs layer = make_layer_inputs(
      random, {.dtype = DType::kFloat32, .expert = ExpertKind::kSiluGate, .hidden = 4, .inner = 4, .tokens = {1}});
  layer.up[0].fill(0);
  layer.down[0].fill(0);
  for (int64_t i = 0; i < 4; ++i) {
    layer.up[0].put(i * 5, 1);       // gate = x
    layer.up[0].put(16 + i * 5, 3);  // up = 3 x
    layer.down[0].put(i * 5, 2);
  }
  const float x[] = {-40, -1, 0.5f, 100};
  const double expected[] = {0, 2 * 3 * 0.26894142, 2 * 3 * 0.25 * 0.62245933, 2 * 3 * 1e4};
  for (int64_t i = 0; i < 4; ++i) layer.x[0].put(i, x[i]);
  layer.ids[0].put(0, 0);
  layer.gates[0].put(0, 1);
  const auto outs = LayerWorld(layer, {}).run(layer);
  for (int64_t i = 0; i < 4; ++i)
    EXPECT_NEAR(outs[0].get(i), expected[i], 1e-6 * std::max(1.0, expected[i])) << "x = " << x[i];
}

TEST(Layer, RoundsTheRowsBetweenItsProjectionsToTheDType) {
  // gate = 1, so silu(1) = 0.731059 becomes 0.73046875 in bfloat16 before it is summed 64 times.
  Random random(15);
  LayerInputs layer = make_layer_inputs(random, {.expert = ExpertKind::kGelu, .hidden = 8, .inner = 64, .tokens = {1}});
  layer.up[0].fill(0);
  for (int64_t i = 0; i < 64; ++i) layer.up[0].put(i * 8, 1);
  layer.down[0].fill(1);
  layer.x[0].fill(1);
  layer.ids[0].put(0, 0);
  layer.gates[0].put(0, 1);
  const float rounded = to_float(from_float<BFloat16>(0.84134475f));
  EXPECT_EQ(LayerWorld(layer, {}).run(layer)[0].get(0), to_float(from_float<BFloat16>(64 * rounded)));
}

TEST(Layer, CallsInFlightKeepTheirOwnResults) {
  Random random(16);
  std::vector<LayerInputs> calls;
  for (int i = 0; i < 4; ++i) {
    calls.push_back(make_layer_inputs(
        random, {.placement = Placement::even(3, 6), .expert = ExpertKind::kGelu, .top_k = 2, .tokens = {8, 5, 7}}));
  }
  for (size_t i = 1; i < 4; ++i) {
    for (size_t rank = 0; rank < 3; ++rank) {
      calls[i].up[rank] = calls[0].up[rank].clone();
      calls[i].down[rank] = calls[0].down[rank].clone();
    }
  }
  WorldSetup setup;
  setup.cpu = {{.consumer_threads = 2, .faults = {.shuffle_seed = 2, .max_delay_us = 200, .poison = true}}};
  LayerWorld world(calls[0], setup);
  std::vector<std::vector<testing::HostTensor>> outs;
  for (const LayerInputs& call : calls) outs.push_back(LayerWorld::make_outs(call));
  for (int32_t rank = 0; rank < 3; ++rank) {  // one rank is calls ahead of the others
    for (size_t i = 0; i < 4; ++i) world.start(rank, calls[i], outs[i]);
  }
  world.synchronize_all();
  for (size_t i = 0; i < 4; ++i) {
    for (int32_t rank = 0; rank < 3; ++rank) {
      ASSERT_TRUE(close_to(outs[i][static_cast<size_t>(rank)], fp64_layer_result(calls[i], rank))) << "call " << i;
    }
  }
  EXPECT_EQ(world.layer(1).epoch(), 4u);
}

TEST(Layer, TakesTokensByTheirRowStride) {
  Random random(17);
  LayerInputs layer = make_layer_inputs(
      random, {.placement = Placement::even(2, 4), .expert = ExpertKind::kGelu, .top_k = 2, .tokens = {6, 5}});
  const auto expected = LayerWorld(layer, {}).run(layer);
  std::vector<testing::HostTensor> wide;
  std::vector<std::vector<int64_t>> shapes, strides(2, {80, 1});
  for (size_t rank = 0; rank < 2; ++rank) {
    wide.emplace_back(DType::kBFloat16, std::vector<int64_t>{layer.x[rank].size(0), 80});
    wide.back().poison();
    for (int64_t i = 0; i < layer.x[rank].elements(); ++i) wide.back().put(i / 32 * 80 + i % 32, layer.x[rank].get(i));
    shapes.push_back({layer.x[rank].size(0), 32});
  }
  for (size_t rank = 0; rank < 2; ++rank) {
    wide[rank].dl().shape = shapes[rank].data();
    wide[rank].dl().strides = strides[rank].data();
    layer.x[rank] = std::move(wide[rank]);
  }
  EXPECT_TRUE(same_bits(LayerWorld(layer, {}).run(layer), expected));
}

TEST(Layer, PassesTwoToThe32Epochs) {
  Random random(18);
  LayerInputs layer = make_layer_inputs(
      random, {.placement = Placement::even(2, 4), .expert = ExpertKind::kSiluGate, .top_k = 2, .tokens = {6, 5}});
  WorldSetup setup;
  setup.cpu = {{.faults = {.poison = true, .first_epoch = (uint64_t{1} << 32) - 2}}};
  LayerWorld world(layer, setup);
  for (int call = 0; call < 5; ++call) {
    draw_layer_tokens(random, layer, {6, 5});
    const auto outs = world.run(layer);
    for (int32_t rank = 0; rank < 2; ++rank) {
      ASSERT_TRUE(close_to(outs[static_cast<size_t>(rank)], fp64_layer_result(layer, rank))) << "call " << call;
    }
  }
}

}  // namespace
}  // namespace tileoverlap
