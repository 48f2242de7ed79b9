#pragma once
// How fast a GPU's kernels are, as measured: what predictions are made from.

#include <cstdint>
#include <string>
#include <vector>

#include "tileoverlap/core/api.hpp"

namespace tileoverlap {

// A GEMM that was measured on all SMs of a GPU.
struct MeasuredGemm {
  int64_t rows = 0;     // copies, spread evenly over the experts
  int32_t experts = 0;  // on the rank
  int64_t k = 0, n = 0;
  int32_t tile_m = 0, tile_n = 0;
  double us = 0;
};

// One GPU. The table is src/predict/gpu_rates.inc, which `tileoverlap rates --fit` writes from what `tileoverlap
// bench` has measured. Any field may be set by the caller, for a GPU that is in another state or does not exist yet.
struct GpuRates {
  std::string device = {};  // the GPU's name, as in CudaDevice
  int32_t capability = 0;   // 90 for 9.0
  int32_t sms = 0;
  double matmul_tflops = 0;  // of 16-bit products on all SMs: only its quotient with memory_gbs matters where GEMMs
  double memory_gbs = 0;     // were measured
  double clock_relief = 0;   // a tile takes (s / S)^clock_relief as long where s of S SMs compute: clocks rise
  double ship_gbs = 0;       // that one SM ships while no GEMM runs
  double ship_share = 1;     // of it, beside a GEMM
  double lane_gbs = 0;       // that one lane of it ships at most
  int32_t lanes = 0;         // of an SM that ships
  double gemm_slowdown = 0;  // a tile takes 1 + this as long beside the consumer
  double start_us = 0;       // until the first tile begins
  double tile_us = 0;        // from the end of a tile's time to its flag
  double end_us = 0;         // from the last row's landing to the end of the call
  double gemm_scale = 1;     // of this GPU's GEMM times over the measured ones, as seen now
  std::vector<MeasuredGemm> gemms = {};
  std::string source = {};  // "measured on ...", or "as on ..., by SMs": another GPU's, as many times as it has SMs
};

// Of the GPU of this name; else of one of the same compute capability; else of any that was measured, each scaled by
// its SMs. Errors: InvalidArgument unless sms > 0.
TILEOVERLAP_API GpuRates gpu_rates(const std::string& device, int32_t capability, int32_t sms);

// One rank's GEMM.
struct GemmShape {
  int64_t bands = 0;    // of tile_m rows
  int32_t experts = 0;  // whose weights are read
  int64_t k = 0, n = 0;
  int32_t tile_m = 128, tile_n = 128;
};

// What a GEMM takes on `sms` SMs, nothing beside it. The time is the longer one of its waves of tiles and of its bytes
// in memory, as often as that fell short for the measured shapes, the near ones counting most. 0 without a band.
// Errors: InvalidArgument unless 0 < sms <= rates.sms.
TILEOVERLAP_API double gemm_us(const GpuRates& rates, const GemmShape& shape, int32_t sms);

}  // namespace tileoverlap
