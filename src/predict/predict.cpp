#include "tileoverlap/predict/predict.hpp"

#include <numeric>

#include "core/text.hpp"
#include "plan/build.hpp"
#include "predict/check_query.hpp"
#include "predict/operator_model.hpp"
#include "tileoverlap/core/error.hpp"

namespace tileoverlap {
namespace {

void check_comm_sms(const PredictQuery& query, int32_t comm_sms) {
  const int32_t sms = sms_of(query);
  if (comm_sms < 1 || comm_sms >= sms) {
    throw InvalidArgument(text("comm_sms must lie in 1..", sms - 1, ", of ", sms, " SMs, got ", comm_sms));
  }
}

}  // namespace

void check_query(const PredictQuery& query, const RouteCounts& counts, std::span<const int32_t> ranks) {
  const auto positive = [](const char* what, auto value) {
    if (!(value > 0)) throw InvalidArgument(text("a prediction needs ", what, " > 0, got ", value));
  };
  positive("k", query.k);
  positive("element_bytes", query.element_bytes);
  positive("gpu.sms", query.gpu.sms);
  positive("gpu.lanes", query.gpu.lanes);
  positive("gpu.matmul_tflops", query.gpu.matmul_tflops);
  positive("gpu.memory_gbs", query.gpu.memory_gbs);
  positive("gpu.ship_gbs", query.gpu.ship_gbs);
  positive("gpu.ship_share", query.gpu.ship_share);
  positive("gpu.lane_gbs", query.gpu.lane_gbs);
  const int32_t sms = sms_of(query);
  if (sms > query.gpu.sms) throw InvalidArgument(text("sms = ", sms, " of a GPU that has ", query.gpu.sms));
  if (sms < 2) throw InvalidArgument(text("a rank needs an SM for the GEMM and one that ships, it has ", sms));
  for (const int32_t rank : ranks) build::check_inputs(query.placement, rank, counts, query.n, query.plan);
}

std::vector<int32_t> ranks_or_all(const PredictQuery& query, std::span<const int32_t> ranks) {
  std::vector<int32_t> all(ranks.begin(), ranks.end());
  if (!all.empty()) return all;
  all.resize(static_cast<size_t>(query.placement.world()));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

std::vector<Prediction> predict(const PredictQuery& query, const RouteCounts& counts, std::span<const int32_t> comm_sms,
                                std::span<const int32_t> ranks) {
  const std::vector<int32_t> looked_at = ranks_or_all(query, ranks);
  check_query(query, counts, looked_at);
  for (const int32_t count : comm_sms) check_comm_sms(query, count);
  const OperatorModel model(query, counts, looked_at);
  std::vector<Prediction> predictions;
  for (const int32_t count : comm_sms) predictions.push_back(model.predict(count));
  return predictions;
}

PredictedRank predict_rank(const PredictQuery& query, const RouteCounts& counts, int32_t comm_sms, int32_t rank) {
  check_query(query, counts, std::span(&rank, 1));
  check_comm_sms(query, comm_sms);
  const RankWork work = work_of(query, counts, rank);
  const TileClock clock(query, work.gemm, comm_sms);
  const std::vector<ShipTimes> times = send_overlapped(query, work, clock, comm_sms);
  PredictedRank result;
  for (const int64_t tile : work.last_tile) result.band_us.push_back(clock.done_us(tile));
  for (size_t i = 0; i < times.size(); ++i) {
    const SentPiece& piece = work.pieces[i];
    result.pieces.push_back(
        {piece.peer, piece.bytes, clock.done_us(piece.last_tile), times[i].begin_us, times[i].end_us});
  }
  return result;
}

}  // namespace tileoverlap
