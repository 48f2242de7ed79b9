#pragma once
// All ranks of a call together: who sends what when, and when it lands.

#include <span>
#include <vector>

#include "predict/rank_work.hpp"
#include "predict/ship_model.hpp"

namespace tileoverlap {

// When each piece of a rank begins and ends to leave it, overlapped with its GEMM.
std::vector<ShipTimes> send_overlapped(const PredictQuery& query, const RankWork& work, const TileClock& clock,
                                       int32_t comm_sms);

// Keeps the ranks' work, so that many splits of SMs can be looked at. The query must outlive it.
class OperatorModel {
 public:
  // Of the ranks given, which have been checked as the query has.
  OperatorModel(const PredictQuery& query, const RouteCounts& counts, std::span<const int32_t> ranks);
  Prediction predict(int32_t comm_sms) const;
  double overlapped_us(int32_t comm_sms) const;  // of the same prediction

 private:
  const PredictQuery& query_;
  std::vector<RankWork> ranks_;
};

}  // namespace tileoverlap
