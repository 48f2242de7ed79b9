#include "execute/choose_producer.hpp"

#include "core/device_query.hpp"
#include "core/text.hpp"

namespace tileoverlap {
namespace {

std::string tiles_text(int32_t capability, DType dtype) {
  std::string result;
  for (const auto& [m, n] : producer_tiles(capability, dtype)) result += text(result.empty() ? "" : ", ", m, "x", n);
  return result.empty() ? "none" : result;
}

}  // namespace

const GpuProducer* returned_producer(DType dtype, const PlanOptions& plan, int32_t device) {
  if (dtype != DType::kBFloat16 && dtype != DType::kFloat16) {
    throw DTypeError(text("the CUDA executor takes bfloat16 or float16, got ", name(dtype)));
  }
  const int32_t capability = capability_of(device);
  const auto* producer = find_producer(capability, dtype, plan.tile_m, plan.tile_n, ExpertKind::kSingle);
  if (producer == nullptr) {
    throw InvalidArgument(text("no kernel for ", name(dtype), " tiles of ", plan.tile_m, "x", plan.tile_n,
                               " on cuda:", device, " (compute capability ", capability / 10, ".", capability % 10,
                               "); there are: ", tiles_text(capability, dtype)));
  }
  return producer;
}

// The first projection shares the bands of the returned GEMM; its tiles are as wide as its kernel likes.
const GpuProducer* first_producer(const EngineOptions& options, int32_t device) {
  if (!has_first_projection(options)) return nullptr;
  const int32_t capability = capability_of(device);
  const GpuProducer* widest = nullptr;
  for (const auto& [tile_m, tile_n] : producer_tiles(capability, options.dtype, options.expert)) {
    if (tile_m != options.plan.tile_m) continue;
    const auto* producer = find_producer(capability, options.dtype, tile_m, tile_n, options.expert);
    if (widest == nullptr || producer->tile_n() > widest->tile_n()) widest = producer;
  }
  if (widest == nullptr) {
    throw InvalidArgument(text("no kernel for ", name(options.dtype), " experts of kind ", name(options.expert),
                               " with tile_m = ", options.plan.tile_m, " on cuda:", device));
  }
  return widest;
}

}  // namespace tileoverlap
