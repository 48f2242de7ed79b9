#pragma once
// Which tile an experts' GEMM is fastest with: as measured on this kind of GPU or on one like it, or by a rule.

#include <cstdint>
#include <string>

#include "tileoverlap/core/api.hpp"
#include "tileoverlap/core/dtype.hpp"

namespace tileoverlap {

// One rank's GEMM as it mostly is. Ranks must choose the same tile: ask for the mean of all ranks.
struct TileQuery {
  std::string device;      // the GPU's name, as in CudaDevice
  int32_t capability = 0;  // 90 for 9.0
  DType dtype = DType::kBFloat16;
  int64_t rows = 0;      // copies that a rank computes in a call
  int32_t experts = 0;   // on the rank
  int64_t k = 0, n = 0;  // depth, and width of a returned row
};

struct TileChoice {
  int32_t tile_m = 128, tile_n = 128, group = 8;  // as in PlanOptions
  std::string source;  // "measured on ...", "as on ..." (a GPU of the same compute capability), or "rule"
};

// The choice of the measured shape that is nearest, in the logarithms of rows, experts, k and n. The table is
// src/produce/tile_table.inc, which `tileoverlap bench tune --table` writes; where nothing of the compute capability
// was measured, 128 x 128, which every GPU has a kernel for. Errors: InvalidArgument unless rows >= 0 and experts, k
// and n are positive.
TILEOVERLAP_API TileChoice choose_tile(const TileQuery& query);

}  // namespace tileoverlap
