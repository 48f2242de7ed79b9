// Thousands of calls in a row with changing counts, new inputs, shuffled tasks, injected delays and poison: no stale
// row, no race (under ThreadSanitizer), no hang. TILEOVERLAP_SOAK_CALLS sets the number of calls.

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "support/compare.hpp"
#include "support/layer_world.hpp"
#include "support/session_world.hpp"

namespace tileoverlap {
namespace {

using testing::Call;
using testing::make_scenario;
using testing::Random;
using testing::same_bits;
using testing::Scenario;
using testing::SessionWorld;
using testing::WorldSetup;

int soak_calls() {
  const char* text = std::getenv("TILEOVERLAP_SOAK_CALLS");
  return text == nullptr ? 10'000 : std::stoi(text);
}

std::vector<int64_t> some_tokens(Random& random) {
  std::vector<int64_t> tokens;
  for (int rank = 0; rank < 3; ++rank) tokens.push_back(random.chance(20) ? 0 : random.between(1, 5));
  return tokens;
}

class Soak : public ::testing::TestWithParam<Layout> {
 protected:
  static constexpr size_t kInFlight = 3;

  WorldSetup setup() const {
    WorldSetup setup{.plan = {.tile_m = 2, .tile_n = 8, .layout = GetParam(), .bands_per_segment = 2, .group = 2}};
    setup.max_tokens = 5;
    // Ranks differ in threads and in haste.
    setup.cpu = {{.producer_threads = 2,
                  .consumer_threads = 2,
                  .faults = {.shuffle_seed = 1, .max_delay_us = 5, .poison = true}},
                 {.producer_threads = 1,
                  .consumer_threads = 2,
                  .faults = {.shuffle_seed = 2, .max_delay_us = 0, .poison = true}},
                 {.producer_threads = 2,
                  .consumer_threads = 1,
                  .faults = {.shuffle_seed = 3, .max_delay_us = 20, .poison = true}}};
    return setup;
  }
};
INSTANTIATE_TEST_SUITE_P(Layouts, Soak, ::testing::Values(Layout::kOwnerAligned, Layout::kCompact),
                         [](const auto& test) { return std::string(name(test.param)); });

TEST_P(Soak, EveryCallGivesItsOwnResult) {
  Random random(301);
  const testing::Shapes shapes{
      .placement = Placement::from_begins({0, 2, 2, 5}), .k = 8, .n = 16, .top_k = 2, .tokens = {5, 5, 5}};
  std::vector<Scenario> scenarios;  // of the calls in flight; the weights stay, the tokens change
  for (size_t i = 0; i < kInFlight; ++i) scenarios.push_back(make_scenario(random, shapes));
  SessionWorld world(scenarios[0], setup());
  std::vector<Call> calls;
  for (const Scenario& scenario : scenarios) calls.push_back(world.make_call(scenario));
  std::vector<testing::HostTensor> expected = testing::exact_results(scenarios[0]);
  const int total = GetParam() == Layout::kCompact ? soak_calls() : soak_calls() / 4;
  for (int done = 0; done < total; done += static_cast<int>(kInFlight)) {
    for (size_t i = 0; i < kInFlight; ++i) {
      draw_tokens(random, scenarios[i], some_tokens(random));
      world.refill(scenarios[i], calls[i]);
    }
    const auto first = static_cast<int32_t>(random.between(0, 2));
    if (random.chance(50)) {  // one rank ahead of the others
      for (size_t i = 0; i < kInFlight; ++i) world.start(first, scenarios[i], calls[i]);
      for (size_t i = 0; i < kInFlight; ++i) {
        for (int32_t rank = 0; rank < 3; ++rank) {
          if (rank != first) world.start(rank, scenarios[i], calls[i]);
        }
      }
    } else {
      for (size_t i = 0; i < kInFlight; ++i) {
        for (int32_t step = 0; step < 3; ++step) world.start((first + step) % 3, scenarios[i], calls[i]);
      }
    }
    world.synchronize_all();
    for (size_t i = 0; i < kInFlight; ++i) {
      for (int32_t rank = 0; rank < 3; ++rank) exact_result(scenarios[i], rank, expected[static_cast<size_t>(rank)]);
      ASSERT_TRUE(same_bits(calls[i].outs, expected)) << "call " << done + static_cast<int>(i);
    }
  }
}

TEST_P(Soak, EveryLayerCallGivesItsOwnResult) {
  Random random(302);
  testing::LayerInputs inputs = make_layer_inputs(random, {.placement = Placement::from_begins({0, 2, 2, 5}),
                                                           .dtype = DType::kFloat32,
                                                           .expert = ExpertKind::kSiluGate,
                                                           .hidden = 8,
                                                           .inner = 8,
                                                           .top_k = 2,
                                                           .tokens = {5, 5, 5}});
  testing::LayerWorld world(inputs, setup());
  const int total = soak_calls() / 10;
  for (int done = 0; done < total; ++done) {
    draw_layer_tokens(random, inputs, some_tokens(random));
    const auto outs = world.run(inputs);
    for (int32_t rank = 0; rank < 3; ++rank) {
      ASSERT_TRUE(close_to(outs[static_cast<size_t>(rank)], fp64_layer_result(inputs, rank))) << "call " << done;
    }
  }
}

}  // namespace
}  // namespace tileoverlap
