#pragma once
// What the GPU tests have in common: tiles, random shapes, disorder, and comparisons with the references.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "support/compare.hpp"
#include "support/gpu_world.hpp"
#include "support/messages.hpp"

namespace tileoverlap::testing {

struct GpuTile {
  int32_t m, n;

  PlanOptions plan() const { return {.tile_m = m, .tile_n = n}; }
  std::string text() const { return std::to_string(m) + "x" + std::to_string(n); }
};
inline std::ostream& operator<<(std::ostream& out, const GpuTile& tile) { return out << tile.text(); }

inline constexpr GpuTile kGpuTiles[] = {{128, 128}, {128, 256}, {64, 256}, {64, 128}};  // of compute capability 9.0
inline constexpr DType kGpuTypes[] = {DType::kBFloat16, DType::kFloat16};

inline bool has_gpu_tile(const GpuTile& tile) {
  const auto tiles = cuda_devices().at(0).bfloat16_tiles;  // float16 has the same
  return std::find(tiles.begin(), tiles.end(), std::pair{tile.m, tile.n}) != tiles.end();
}

inline std::vector<GpuTile> gpu_tiles() {
  std::vector<GpuTile> tiles;
  std::copy_if(std::begin(kGpuTiles), std::end(kGpuTiles), std::back_inserter(tiles), has_gpu_tile);
  return tiles;
}

// Whether its GEMM can store rows at their owners: Transfer::kStore.
inline bool gpu_stores_to_owners() { return cuda_devices().at(0).capability == 90; }

// Shuffled, delayed and poisoned: what no result may depend on.
inline GpuSetup disordered(uint64_t seed, int32_t max_delay_us = 20) {
  GpuSetup setup;
  setup.cuda = {{.faults = {.shuffle_seed = seed, .max_delay_us = max_delay_us, .poison = true}}};
  return setup;
}

inline GpuSetup poisoned_gpu() {
  GpuSetup setup;
  setup.cuda = {{.faults = {.poison = true}}};
  return setup;
}

inline std::vector<double> as_doubles(const HostTensor& tensor) {
  std::vector<double> values;
  for (int64_t i = 0; i < tensor.elements(); ++i) values.push_back(tensor.get(i));
  return values;
}

inline ::testing::AssertionResult close_to_fp64(const std::vector<HostTensor>& outs, const Scenario& scenario) {
  for (int32_t rank = 0; rank < scenario.world(); ++rank) {
    const auto result = close_to(outs.at(static_cast<size_t>(rank)), fp64_result(scenario, rank));
    if (!result) return ::testing::AssertionFailure() << "rank " << rank << ": " << result.message();
  }
  return ::testing::AssertionSuccess();
}

inline ::testing::AssertionResult close_to_fp64(const std::vector<HostTensor>& outs, const LayerInputs& inputs) {
  for (int32_t rank = 0; rank < inputs.shapes.placement.world(); ++rank) {
    const auto result = close_to(outs.at(static_cast<size_t>(rank)), fp64_layer_result(inputs, rank));
    if (!result) return ::testing::AssertionFailure() << "rank " << rank << ": " << result.message();
  }
  return ::testing::AssertionSuccess();
}

// The CPU executor's results differ in the order of the sums over k alone.
inline ::testing::AssertionResult close_to_cpu(const std::vector<HostTensor>& outs,
                                               const std::vector<HostTensor>& of_cpu) {
  for (size_t rank = 0; rank < of_cpu.size(); ++rank) {
    const auto result = close_to(outs.at(rank), as_doubles(of_cpu[rank]));
    if (!result) return ::testing::AssertionFailure() << "rank " << rank << ": " << result.message();
  }
  return ::testing::AssertionSuccess();
}

inline bool all_nan(const std::vector<HostTensor>& outs) {
  for (const HostTensor& out : outs) {
    for (int64_t i = 0; i < out.elements(); ++i) {
      if (!std::isnan(out.get(i))) return false;
    }
  }
  return true;
}

inline bool all_zero(const std::vector<HostTensor>& outs) {
  for (const HostTensor& out : outs) {
    for (int64_t i = 0; i < out.elements(); ++i) {
      if (out.get(i) != 0.0f) return false;
    }
  }
  return true;
}

// Uneven experts, empty ranks, widths that fill no tile; small enough for a reference on the host.
inline Shapes random_gpu_shapes(Random& random) {
  std::vector<int32_t> begins{0};
  for (int32_t rank = random.between32(1, 6); rank > 0; --rank) {
    begins.push_back(begins.back() + (random.chance(20) ? 0 : random.between32(1, 4)));
  }
  constexpr int64_t kWidths[] = {8, 24, 136, 264, 1000};
  Shapes shapes{.placement = Placement::from_begins(begins),
                .dtype = random.chance(50) ? DType::kBFloat16 : DType::kFloat16,
                .k = kWidths[random.between(0, 4)],
                .n = kWidths[random.between(0, 4)],
                .top_k = random.between32(1, 8)};
  constexpr int64_t kMostProducts = 30'000'000;
  const int64_t copies = kMostProducts / (shapes.k * shapes.n);
  const int64_t most = std::clamp<int64_t>(copies / (shapes.top_k * shapes.placement.world()), 1, 300);
  const bool nothing = random.chance(5);
  for (int32_t rank = 0; rank < shapes.placement.world(); ++rank) {
    shapes.tokens.push_back(nothing || random.chance(15) ? 0 : random.between(1, most));
  }
  return shapes;
}

// Any plan that this GPU has a kernel for.
inline PlanOptions random_gpu_plan(Random& random, const GpuTile& tile) {
  return {.tile_m = tile.m,
          .tile_n = tile.n,
          .layout = random.chance(50) ? Layout::kOwnerAligned : Layout::kCompact,
          .bands_per_segment = random.between32(1, 4),
          .group = random.between32(1, 8)};
}

inline GpuTile any_of(Random& random, const std::vector<GpuTile>& tiles) {
  return tiles[static_cast<size_t>(random.between(0, static_cast<int64_t>(tiles.size()) - 1))];
}

// The error that a rank's calls ended with; fails the test where there is none.
inline WaitTimeout failure_of(Calls& calls) {
  try {
    calls.synchronize();
  } catch (const WaitTimeout& error) {
    return error;
  }
  ADD_FAILURE() << "rank " << calls.rank() << " did not fail";
  return WaitTimeout({}, -1);
}

}  // namespace tileoverlap::testing
