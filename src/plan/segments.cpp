#include "tileoverlap/plan/segments.hpp"

#include <algorithm>

#include "plan/build.hpp"

namespace tileoverlap::build {
namespace {

// Cuts `run` after at most `bands_per_segment` bands; the first cut at the head of the schedule and the last at its
// tail leave one band, so that sending starts early and little is left to send when the GEMM ends.
void cut_run(const Run& run, bool head, bool tail, PlanData& plan) {
  const int64_t tile_m = plan.options.tile_m;
  const int64_t row_end = run.row_begin + run.row_count;
  const int64_t last_band = (row_end - 1) / tile_m;
  int64_t row = run.row_begin;
  while (row < row_end) {
    const int64_t first = row / tile_m;
    const bool first_of_all = head && row == run.row_begin;
    int64_t last = std::min(last_band, first + (first_of_all ? 1 : plan.options.bands_per_segment) - 1);
    if (tail && last == last_band && first < last_band) last = last_band - 1;
    const int64_t end = std::min(row_end, (last + 1) * tile_m);
    plan.segments.push_back({.first_band = static_cast<int32_t>(first),
                             .last_band = static_cast<int32_t>(last),
                             .peer = run.owner,
                             .expert = run.expert,
                             .row_begin = row,
                             .row_count = end - row,
                             .remote_row = run.remote_row + (row - run.row_begin)});
    row = end;
  }
}

// Non-empty remote runs in the order in which the schedule reaches them: expert by expert, rows ascending.
std::vector<const Run*> remote_runs(const PlanData& plan) {
  std::vector<const Run*> runs;
  const auto world = static_cast<size_t>(plan.placement.world());
  const int32_t first_expert = plan.placement.begin(plan.rank);
  int32_t last_expert = -1;
  for (const ScheduledBand& band : plan.order) {
    if (band.expert == last_expert) continue;
    last_expert = band.expert;
    const auto index = static_cast<size_t>(band.expert - first_expert);
    // Local bands come behind all remote ones: from here on nothing is sent.
    if (band.band >= plan.experts[index].first_band + plan.experts[index].remote_bands) break;
    for (size_t i = index * world; i < (index + 1) * world; ++i) {
      const Run& run = plan.runs[i];
      if (run.owner != plan.rank && run.row_count > 0) runs.push_back(&run);
    }
  }
  return runs;
}

}  // namespace

void cut_segments(PlanData& plan) {
  const std::vector<const Run*> runs = remote_runs(plan);
  plan.segments.reserve(runs.size() + plan.order.size());
  for (const Run* run : runs) cut_run(*run, run == runs.front(), run == runs.back(), plan);
}

}  // namespace tileoverlap::build
