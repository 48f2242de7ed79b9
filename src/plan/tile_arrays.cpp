#include "tileoverlap/plan/tile_arrays.hpp"

#include <algorithm>

namespace tileoverlap {

TileArrays tile_arrays(const Plan& handle) {
  const PlanData& plan = *handle;
  const int64_t tile_m = plan.options.tile_m;
  const auto world = static_cast<size_t>(plan.placement.world());
  TileArrays arrays;
  for (int64_t task = 0; task < handle.tiles(); ++task) {
    const TileCoord tile = tile_at(plan.order.data(), task, plan.tiles_n);
    const int64_t band_begin = tile.band * tile_m, band_end = band_begin + tile_m;
    const auto first_run = static_cast<size_t>(tile.expert - plan.placement.begin(plan.rank)) * world;
    for (size_t i = first_run; i < first_run + world; ++i) {
      const Run& run = plan.runs[i];
      const int64_t begin = std::max(run.row_begin, band_begin);
      const int64_t end = std::min(run.row_begin + run.row_count, band_end);
      if (begin >= end) continue;
      arrays.tile.push_back(int64_t{tile.band} * plan.tiles_n + tile.tile_n);
      arrays.expert.push_back(tile.expert);
      arrays.dest_rank.push_back(run.owner);
      arrays.row_begin.push_back(begin);
      arrays.valid_rows.push_back(end - begin);
      arrays.remote_offset.push_back(run.owner == plan.rank
                                         ? -1
                                         : element_offset(run.remote_row + (begin - run.row_begin), plan.n,
                                                          int64_t{tile.tile_n} * plan.options.tile_n));
    }
  }
  return arrays;
}

}  // namespace tileoverlap
