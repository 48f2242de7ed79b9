#include "produce/gpu_producer.hpp"

#include <algorithm>

#include "produce/instances/instances.hpp"

namespace tileoverlap {
namespace {

// Every compiled kernel. A function and not a table: objects are made where they are first asked for, in any order.
std::span<const GpuProducer* const> all_producers() {
  static const GpuProducer* const producers[] = {
      &sm80_bf16_128x128(),
      &sm80_bf16_128x128_gelu(),
      &sm80_bf16_128x128_silu_gate(),
      &sm80_fp16_128x128(),
      &sm80_fp16_128x128_gelu(),
      &sm80_fp16_128x128_silu_gate(),
      &sm90_bf16_128x256(),
      &sm90_bf16_128x256_gelu(),
      &sm90_bf16_128x128_silu_gate(),
      &sm90_bf16_128x128(),
      &sm90_bf16_64x128(),
      &sm90_bf16_64x256(),
      &sm90_bf16_64x256_gelu(),
      &sm90_bf16_64x128_silu_gate(),
      &sm90_fp16_128x256(),
      &sm90_fp16_128x256_gelu(),
      &sm90_fp16_128x128_silu_gate(),
      &sm90_fp16_128x128(),
      &sm90_fp16_64x128(),
      &sm90_fp16_64x256(),
      &sm90_fp16_64x256_gelu(),
      &sm90_fp16_64x128_silu_gate(),
  };
  return producers;
}

bool runs_on(const GpuProducer& producer, int32_t capability) {
  return producer.exact_capability() ? capability == producer.min_capability()
                                     : capability >= producer.min_capability();
}

}  // namespace

const GpuProducer* find_producer(int32_t capability, DType dtype, int32_t tile_m, int32_t tile_n,
                                 ExpertKind activation) {
  const GpuProducer* best = nullptr;
  for (const GpuProducer* producer : all_producers()) {
    if (!runs_on(*producer, capability) || producer->dtype() != dtype || producer->tile_m() != tile_m ||
        producer->tile_n() != tile_n || producer->activation() != activation)
      continue;
    if (best == nullptr || producer->min_capability() > best->min_capability()) best = producer;
  }
  return best;
}

std::vector<std::pair<int32_t, int32_t>> producer_tiles(int32_t capability, DType dtype, ExpertKind activation) {
  std::vector<std::pair<int32_t, int32_t>> tiles;
  for (const GpuProducer* producer : all_producers()) {
    if (runs_on(*producer, capability) && producer->dtype() == dtype && producer->activation() == activation)
      tiles.emplace_back(producer->tile_m(), producer->tile_n());
  }
  std::sort(tiles.begin(), tiles.end());
  tiles.erase(std::unique(tiles.begin(), tiles.end()), tiles.end());
  return tiles;
}

}  // namespace tileoverlap
