#include "produce/instances/instances.hpp"
#include "produce/sm90/sm90_producer.hpp"

namespace tileoverlap {

const GpuProducer& sm90_fp16_128x256_gelu() {
  using Gemm = sm90::ExpertGemm<cutlass::half_t, 128, 256, sm90::Teamwork::kCooperative, ExpertKind::kGelu>;
  static const sm90::Sm90Producer<Gemm, DType::kFloat16, ExpertKind::kGelu> producer;
  return producer;
}

}  // namespace tileoverlap
