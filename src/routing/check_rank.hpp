#pragma once
// The one check that a rank belongs to a placement.

#include <cstdint>

#include "core/text.hpp"
#include "tileoverlap/core/error.hpp"
#include "tileoverlap/routing/placement.hpp"

namespace tileoverlap {

inline void check_rank(const Placement& placement, int32_t rank) {
  if (rank < 0 || rank >= placement.world()) {
    throw InvalidArgument(text("rank must lie in ", range_text(0, placement.world()), ", got ", rank));
  }
}

}  // namespace tileoverlap
