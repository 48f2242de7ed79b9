#pragma once
// What kernels found wrong with ids, in the words of the host's own checks.

#include <cstdint>
#include <string>

#include "core/text.hpp"
#include "execute/device_world.hpp"

namespace tileoverlap {

inline std::string describe(const IdReport& report, int32_t experts, int32_t top_k, int32_t rank) {
  if (report.copy >= 0) {
    return text("topk_ids must be -1 (no copy) or lie in ", range_text(0, experts), ", got ", report.value, " at rank ",
                rank, ", token ", report.copy / top_k, ", slot ", report.copy % top_k);
  }
  return text("topk_ids do not belong to this plan: rank ", rank, " sends ", report.copies, " copies to expert ",
              report.expert, ", the plan was made for ", report.planned);
}

}  // namespace tileoverlap
