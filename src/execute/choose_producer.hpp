#pragma once
// The kernels that an engine's GEMMs run on.

#include <cstdint>

#include "execute/engine_options.hpp"
#include "produce/gpu_producer.hpp"

namespace tileoverlap {

inline constexpr int64_t kNarrowestTile = 64;  // columns of an output tile that no kernel is below

// Of the returned GEMM. Throws DTypeError and InvalidArgument, which lists what there is.
const GpuProducer* returned_producer(DType dtype, const PlanOptions& plan, int32_t device);
// Of the first projection; null where there is none.
const GpuProducer* first_producer(const EngineOptions& options, int32_t device);

}  // namespace tileoverlap
