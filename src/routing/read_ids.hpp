#pragma once
// Reading expert ids of either width.

#include <cstdint>

#include "core/text.hpp"
#include "tileoverlap/core/error.hpp"
#include "tileoverlap/core/tensor.hpp"

namespace tileoverlap {

TensorView check_ids(const TensorArg& topk_ids, DLDevice device = {kDLCPU, 0});

// Calls visit(token, slot, expert) for every copy in (token, slot) order. Ids of -1 are skipped; any other id outside
// 0 .. experts-1 throws before it is used. The value is compared at its full width: narrowing first would hide it.
template <class Visit>
void for_each_copy(const TensorView& ids, int32_t experts, int32_t rank, Visit visit) {
  const auto walk = [&]<class Id>(Id) {
    for (int64_t token = 0; ids.elements > 0 && token < ids.shape[0]; ++token) {
      const Id* row = ids.row<const Id>(token);
      for (int64_t slot = 0; slot < ids.shape[1]; ++slot) {
        const int64_t id = row[slot];
        if (id == -1) continue;
        if (id < 0 || id >= experts) {
          throw InvalidArgument(text("topk_ids must be -1 (no copy) or lie in ", range_text(0, experts), ", got ", id,
                                     " at rank ", rank, ", token ", token, ", slot ", slot));
        }
        visit(token, static_cast<int32_t>(slot), static_cast<int32_t>(id));
      }
    }
  };
  ids.dtype == DType::kInt64 ? walk(int64_t{}) : walk(int32_t{});
}

}  // namespace tileoverlap
