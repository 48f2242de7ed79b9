#include "predict/rank_work.hpp"

#include <algorithm>

#include "plan/build.hpp"
#include "plan/build_pieces.hpp"
#include "tileoverlap/core/math.hpp"

namespace tileoverlap {
namespace {

// Tile of the band at `position` that is done last: a group's bands are interleaved, column by column.
int64_t last_tile_of(const PlanData& plan, size_t position) {
  const ScheduledBand& entry = plan.order[position];
  const int64_t in_group = static_cast<int64_t>(position) - entry.group_begin;
  return int64_t{entry.group_begin} * plan.tiles_n + int64_t{plan.tiles_n - 1} * entry.group_size + in_group;
}

}  // namespace

RankWork work_of(const PredictQuery& query, const RouteCounts& counts, int32_t rank) {
  const PlanData plan = build::plan_work(query.placement, rank, counts, query.n, query.plan);
  RankWork work{.rank = rank,
                .gemm = {.bands = static_cast<int64_t>(plan.order.size()),
                         .k = query.k,
                         .n = query.n,
                         .tile_m = query.plan.tile_m,
                         .tile_n = query.plan.tile_n}};
  for (const ExpertRows& expert : plan.experts) work.gemm.experts += expert.bands > 0 ? 1 : 0;
  std::vector<int64_t> of_band(plan.order.size());
  for (size_t position = 0; position < plan.order.size(); ++position) {
    work.last_tile.push_back(last_tile_of(plan, position));
    of_band[static_cast<size_t>(plan.order[position].band)] = work.last_tile.back();
  }
  const int64_t row_bytes = query.n * query.element_bytes;
  std::vector<Piece> pieces;
  build_pieces(plan, piece_rows(row_bytes, query.plan.tile_m), pieces);
  work.pieces.reserve(pieces.size());
  for (const Piece& piece : pieces) {
    const auto first = of_band.begin() + piece.first_band, end = of_band.begin() + piece.last_band + 1;
    work.pieces.push_back({*std::max_element(first, end), piece.row_count * row_bytes, piece.peer});
  }
  return work;
}

TileClock::TileClock(const PredictQuery& query, const GemmShape& gemm, int32_t comm_sms)
    : sms_(sms_of(query) - comm_sms) {
  const int64_t tiles = gemm.bands * ceil_div(gemm.n, gemm.tile_n);
  if (tiles == 0) return;
  const double slowdown = comm_sms > 0 ? query.gpu.gemm_slowdown : 0;
  start_us_ = query.gpu.start_us;
  flag_us_ = query.gpu.tile_us;
  waves_ = static_cast<double>(ceil_div(tiles, sms_));
  tile_us_ = std::max(0.0, gemm_us(query.gpu, gemm, sms_) - start_us_) / waves_ * (1 + slowdown);
}

}  // namespace tileoverlap
