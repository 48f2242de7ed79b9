#include "produce/instances/instances.hpp"
#include "produce/sm80/sm80_producer.hpp"

namespace tileoverlap {
namespace {

using Element = cutlass::bfloat16_t;
using Tile = cutlass::gemm::GemmShape<128, 128, 32>;
constexpr int kStages = 4;

template <ExpertKind Activation>
using Ungated = sm80::ExpertGemm<Element, Tile, cutlass::gemm::GemmShape<64, 64, 32>, kStages, Activation>;
// Two tiles of sums at a time: twice the warps, so that they stay in registers.
using Gated = sm80::ExpertGemm<Element, Tile, cutlass::gemm::GemmShape<64, 32, 32>, kStages, ExpertKind::kSiluGate>;

}  // namespace

const GpuProducer& sm80_bf16_128x128() {
  static const sm80::Sm80Producer<Ungated<ExpertKind::kSingle>> producer;
  return producer;
}

const GpuProducer& sm80_bf16_128x128_gelu() {
  static const sm80::Sm80Producer<Ungated<ExpertKind::kGelu>> producer;
  return producer;
}

const GpuProducer& sm80_bf16_128x128_silu_gate() {
  static const sm80::Sm80Producer<Gated> producer;
  return producer;
}

}  // namespace tileoverlap
