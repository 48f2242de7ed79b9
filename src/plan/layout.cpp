#include "plan/build.hpp"

#include <utility>

#include "core/text.hpp"
#include "tileoverlap/core/error.hpp"

namespace tileoverlap {

const char* name(Layout layout) { return layout == Layout::kOwnerAligned ? "owner_aligned" : "compact"; }

Layout parse_layout(const std::string& text_value) {
  for (const Layout layout : {Layout::kOwnerAligned, Layout::kCompact}) {
    if (text_value == name(layout)) return layout;
  }
  throw InvalidArgument(text("layout must be owner_aligned or compact, got '", text_value, "'"));
}

std::string repr(const PlanOptions& options) {
  return text("PlanOptions(tile=(", options.tile_m, ", ", options.tile_n, "), layout='", name(options.layout),
              "', bands_per_segment=", options.bands_per_segment, ", group=", options.group, ")");
}

namespace build {

void check_options(const PlanOptions& options) {
  if (options.layout != Layout::kOwnerAligned && options.layout != Layout::kCompact) {
    throw InvalidArgument(
        text("layout must be owner_aligned or compact, got the value ", static_cast<int32_t>(options.layout)));
  }
  for (const auto& [what, value] : {std::pair{"tile_m", options.tile_m},
                                    {"tile_n", options.tile_n},
                                    {"bands_per_segment", options.bands_per_segment},
                                    {"group", options.group}}) {
    if (value <= 0) throw InvalidArgument(text(what, " must be positive, got ", value));
  }
}

void lay_out_rows(const RouteCounts& counts, PlanData& plan) {
  const int32_t world = plan.placement.world();
  const int32_t rank = plan.rank;
  const int64_t tile_m = plan.options.tile_m;
  plan.dispatched_rows.assign(static_cast<size_t>(world), 0);
  // First staging row, at each owner, of the copies for the expert at hand.
  std::vector<int64_t> remote_row(static_cast<size_t>(world), 0);
  for (int32_t owner = 0; owner < world; ++owner) {
    for (int32_t expert = 0; expert < plan.placement.begin(rank); ++expert) {
      remote_row[static_cast<size_t>(owner)] += counts.at(owner, expert);
    }
  }
  plan.experts.reserve(static_cast<size_t>(plan.placement.experts_on(rank)));
  plan.runs.reserve(static_cast<size_t>(plan.placement.experts_on(rank)) * static_cast<size_t>(world));
  for (int32_t expert = plan.placement.begin(rank); expert < plan.placement.end(rank); ++expert) {
    const int64_t first_row = plan.rows;
    const ExpertExtent extent = walk_runs(
        rank, world, plan.options.layout, plan.options.tile_m,
        [&](int32_t owner) { return int64_t{counts.at(owner, expert)}; },
        [&](int32_t owner, int64_t row_begin, int64_t copies) {
          int64_t& remote = remote_row[static_cast<size_t>(owner)];
          plan.runs.push_back({expert, owner, first_row + row_begin, copies, remote});
          remote += copies;
          plan.dispatched_rows[static_cast<size_t>(owner)] += copies;
        });
    const int64_t bands = ceil_div(extent.rows, tile_m);
    if (first_row / tile_m + bands > kMaxBands) {
      throw InvalidArgument(text("a plan may have at most ", kMaxBands, " bands of tile_m = ", tile_m, " rows, expert ",
                                 expert, " of rank ", rank, " passes that"));
    }
    plan.experts.push_back({.expert = expert,
                            .first_band = static_cast<int32_t>(first_row / tile_m),
                            .bands = static_cast<int32_t>(bands),
                            .remote_bands = static_cast<int32_t>(ceil_div(extent.remote_rows, tile_m)),
                            .row_begin = first_row,
                            .rows = extent.rows,
                            .valid_rows = extent.valid_rows});
    plan.rows += bands * tile_m;
    plan.gemm_rows += extent.rows;
    plan.valid_rows += extent.valid_rows;
  }
}

void locate_own_copies(const RouteCounts& counts, PlanData& plan) {
  const int32_t world = plan.placement.world();
  const int32_t me = plan.rank;
  plan.staging_row.reserve(static_cast<size_t>(plan.placement.experts()) + 1);
  plan.dispatch_row.reserve(static_cast<size_t>(plan.placement.experts()));
  plan.returned_rows.assign(static_cast<size_t>(world), 0);
  plan.staging_row.push_back(0);
  for (int32_t host = 0; host < world; ++host) {
    int64_t first_row = 0;
    for (int32_t expert = plan.placement.begin(host); expert < plan.placement.end(host); ++expert) {
      const ExpertExtent extent = walk_runs(
          host, world, plan.options.layout, plan.options.tile_m,
          [&](int32_t owner) { return int64_t{counts.at(owner, expert)}; },
          [&](int32_t owner, int64_t row_begin, int64_t) {
            if (owner == me) plan.dispatch_row.push_back(first_row + row_begin);
          });
      first_row += align_up(extent.rows, plan.options.tile_m);
      const int64_t copies = counts.at(me, expert);
      plan.staging_row.push_back(plan.staging_row.back() + copies);
      if (host != me) plan.returned_rows[static_cast<size_t>(host)] += copies;
    }
  }
  plan.staging_rows = plan.staging_row.back();
  plan.copies_of.reserve(static_cast<size_t>(world));
  for (int32_t owner = 0; owner < world; ++owner) plan.copies_of.push_back(counts.copies_of(owner));
}

}  // namespace build
}  // namespace tileoverlap
