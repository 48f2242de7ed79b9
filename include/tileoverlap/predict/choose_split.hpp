#pragma once
// How many SMs should ship rows, by prediction.

#include <cstdint>
#include <span>

#include "tileoverlap/core/api.hpp"
#include "tileoverlap/predict/predict.hpp"

namespace tileoverlap {

struct SplitChoice {
  int32_t comm_sms = 1;      // the fewest SMs whose time is within a five-hundredth of the best
  double overlapped_us = 0;  // with these
  double serial_us = 0;      // GEMM on all SMs, then the return on as many
};

// Looks at few numbers of SMs at first, and then at all between the neighbours of the best; at no more than a fifth of
// the rank's.
//   ranks  as for predict
// Errors: as predict; InvalidArgument where a rank has fewer than two SMs.
TILEOVERLAP_API SplitChoice choose_split(const PredictQuery& query, const RouteCounts& counts,
                                         std::span<const int32_t> ranks = {});

// `copies` of each owner, spread over all experts as evenly as whole numbers allow: what is expected of a call whose
// routing is not known yet. Errors: InvalidArgument for copies below 0, or above 0 where there is no expert.
TILEOVERLAP_API RouteCounts even_counts(const Placement& placement, int64_t copies);

}  // namespace tileoverlap
