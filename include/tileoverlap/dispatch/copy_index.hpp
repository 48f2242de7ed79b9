#pragma once
// Where each copy of an owner goes, and where the owner finds its result.

#include <cstdint>
#include <span>
#include <vector>

#include "tileoverlap/core/tensor.hpp"
#include "tileoverlap/plan/plan.hpp"

namespace tileoverlap {

// Indexed by copy = token * k + slot; -1 for a slot without a copy. Copies of one expert are numbered by
// (token, slot), which the owner knows without asking anybody.
struct CopyIndex {
  int64_t tokens = 0;
  int32_t top_k = 0;
  std::vector<int32_t> peer;          // the rank that hosts the copy's expert
  std::vector<int64_t> dispatch_row;  // the copy's row on that rank
  // The row of the result, in one index space: rows [0, staging_rows) are this rank's staging, row staging_rows + r
  // is row r of this rank's own output (results of local experts are not sent).
  std::vector<int64_t> gather_row;

  TILEOVERLAP_API void reserve(int64_t max_tokens, int32_t slots);  // so that fill_copy_index does not allocate
};

// `topk_ids` [T, k] int32 or int64: the ids from which the plan's counts of this rank were taken.
// Errors: InvalidArgument when the ids do not give the plan's counts, as for count_ids otherwise.
TILEOVERLAP_API CopyIndex make_copy_index(const Plan& plan, const TensorArg& topk_ids);
TILEOVERLAP_API void fill_copy_index(const Plan& plan, const TensorView& topk_ids, CopyIndex& index);

}  // namespace tileoverlap
