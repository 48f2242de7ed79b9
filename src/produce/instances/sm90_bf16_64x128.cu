#include "produce/instances/instances.hpp"
#include "produce/sm90/sm90_producer.hpp"

namespace tileoverlap {

const GpuProducer& sm90_bf16_64x128() {
  using Gemm = sm90::ExpertGemm<cutlass::bfloat16_t, 64, 128, sm90::Teamwork::kPingpong, ExpertKind::kSingle>;
  static const sm90::Sm90Producer<Gemm, DType::kBFloat16, ExpertKind::kSingle> producer;
  return producer;
}

}  // namespace tileoverlap
