#include "produce/instances/instances.hpp"
#include "produce/sm90/sm90_producer.hpp"

namespace tileoverlap {

const GpuProducer& sm90_bf16_128x128_silu_gate() {
  using Gemm = sm90::ExpertGemm<cutlass::bfloat16_t, 128, 256, sm90::Teamwork::kCooperative, ExpertKind::kSiluGate>;
  static const sm90::Sm90Producer<Gemm, DType::kBFloat16, ExpertKind::kSiluGate> producer;
  return producer;
}

}  // namespace tileoverlap
