#pragma once
// What predictions are asked for, checked at the edge.

#include <cstdint>
#include <span>
#include <vector>

#include "tileoverlap/predict/predict.hpp"

namespace tileoverlap {

// Throws InvalidArgument, as predict() says, for all but the numbers of SMs that ship.
void check_query(const PredictQuery& query, const RouteCounts& counts, std::span<const int32_t> ranks);

// The ranks given, or all where there are none.
std::vector<int32_t> ranks_or_all(const PredictQuery& query, std::span<const int32_t> ranks);

}  // namespace tileoverlap
