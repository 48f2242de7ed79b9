#pragma once
// The choices that shape a plan.

#include <cstdint>
#include <string>

#include "tileoverlap/core/api.hpp"

namespace tileoverlap {

enum class Layout : int32_t {
  kOwnerAligned,  // every remote run starts at a multiple of tile_m (paper, Algorithm 1): one owner a band
  kCompact,       // runs lie back to back, only experts start at a multiple of tile_m: no padded GEMM rows
};

struct PlanOptions {
  int32_t tile_m = 128;  // rows of an output tile, > 0
  int32_t tile_n = 128;  // columns of an output tile, > 0
  Layout layout = Layout::kCompact;
  int32_t bands_per_segment = 1;  // bands sent in one go, > 0 (the paper's mgb); first and last segment are one band
  int32_t group = 8;              // bands of an expert whose tiles are interleaved, > 0; the first groups are smaller

  friend bool operator==(const PlanOptions&, const PlanOptions&) = default;
};

TILEOVERLAP_API const char* name(Layout layout);  // "owner_aligned", "compact"
TILEOVERLAP_API Layout parse_layout(const std::string& text);
TILEOVERLAP_API std::string repr(const PlanOptions& options);

}  // namespace tileoverlap
