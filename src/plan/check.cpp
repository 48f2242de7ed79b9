#include "tileoverlap/plan/check.hpp"

#include <algorithm>
#include <numeric>

#include "core/text.hpp"

namespace tileoverlap {
namespace {

using Findings = std::vector<std::string>;

// Half-open row range with a word on whose it is.
struct RowRange {
  int64_t begin, end;
  std::string what;
};

void check_disjoint(std::vector<RowRange> ranges, const char* where, Findings& findings) {
  std::erase_if(ranges, [](const RowRange& range) { return range.begin == range.end; });
  std::sort(ranges.begin(), ranges.end(), [](const RowRange& a, const RowRange& b) { return a.begin < b.begin; });
  for (size_t i = 1; i < ranges.size(); ++i) {
    if (ranges[i].begin < ranges[i - 1].end) {
      findings.push_back(text(where, ": ", ranges[i].what, " starts at row ", ranges[i].begin, " inside ",
                              ranges[i - 1].what, ", which ends at row ", ranges[i - 1].end));
    }
  }
}

const ExpertRows* expert_of(const PlanData& plan, int32_t expert) {
  for (const ExpertRows& rows : plan.experts) {
    if (rows.expert == expert) return &rows;
  }
  return nullptr;
}

void check_runs(const PlanData& plan, const RouteCounts& counts, Findings& findings) {
  const int32_t world = plan.placement.world();
  const int32_t first_expert = plan.placement.begin(plan.rank);
  const auto wanted = static_cast<size_t>(plan.placement.experts_on(plan.rank)) * static_cast<size_t>(world);
  if (plan.runs.size() != wanted) {
    findings.push_back(text("runs: ", plan.runs.size(), " of them, experts * world is ", wanted));
    return;
  }
  std::vector<RowRange> ranges;
  for (size_t i = 0; i < plan.runs.size(); ++i) {
    const Run& run = plan.runs[i];
    const auto index = static_cast<int32_t>(i);
    const std::string what = text("run of expert ", run.expert, ", owner ", run.owner);
    if (run.expert != first_expert + index / world || run.owner != owner_at(plan.rank, index % world, world)) {
      findings.push_back(text(what, " stands at position ", i));
      return;
    }
    if (run.row_count != counts.at(run.owner, run.expert)) {
      findings.push_back(
          text(what, " has ", run.row_count, " rows, the counts say ", counts.at(run.owner, run.expert)));
    }
    const int64_t before =
        std::accumulate(counts.row(run.owner).begin(), counts.row(run.owner).begin() + run.expert, int64_t{0});
    if (run.remote_row != before) {
      findings.push_back(text(what, " returns to staging row ", run.remote_row, ", should be ", before));
    }
    const ExpertRows* expert = expert_of(plan, run.expert);
    if (expert == nullptr || run.row_begin < expert->row_begin ||
        run.row_begin + run.row_count > expert->row_begin + expert->rows) {
      findings.push_back(text(what, " lies at rows ", run.row_begin, "..", run.row_begin + run.row_count,
                              ", outside its expert's rows"));
    }
    if (plan.options.layout == Layout::kOwnerAligned && run.owner != plan.rank &&
        run.row_begin % plan.options.tile_m != 0) {
      findings.push_back(
          text(what, " starts at row ", run.row_begin, ", not a multiple of tile_m = ", plan.options.tile_m));
    }
    ranges.push_back({run.row_begin, run.row_begin + run.row_count, what});
  }
  check_disjoint(std::move(ranges), "runs", findings);
}

void check_experts(const PlanData& plan, const RouteCounts& counts, Findings& findings) {
  const int64_t tile_m = plan.options.tile_m;
  int64_t next_row = 0, gemm_rows = 0, valid_rows = 0;
  if (static_cast<int32_t>(plan.experts.size()) != plan.placement.experts_on(plan.rank)) {
    findings.push_back(
        text("experts: ", plan.experts.size(), " of them, the rank hosts ", plan.placement.experts_on(plan.rank)));
  }
  for (const ExpertRows& expert : plan.experts) {
    if (expert.expert < 0 || expert.expert >= plan.placement.experts()) {
      findings.push_back(text("expert ", expert.expert, " does not exist"));
      return;
    }
    const ExpertExtent extent = walk_runs(
        plan.rank, plan.placement.world(), plan.options.layout, plan.options.tile_m,
        [&](int32_t owner) { return int64_t{counts.at(owner, expert.expert)}; }, [](int32_t, int64_t, int64_t) {});
    if (expert.row_begin != next_row || expert.first_band * tile_m != next_row ||
        expert.bands != ceil_div(extent.rows, tile_m)) {
      findings.push_back(text("expert ", expert.expert, " lies at row ", expert.row_begin, " with ", expert.bands,
                              " bands for ", extent.rows, " rows, should start at row ", next_row));
    }
    if (expert.rows != extent.rows || expert.valid_rows != extent.valid_rows ||
        expert.remote_bands != ceil_div(extent.remote_rows, tile_m)) {
      findings.push_back(text("expert ", expert.expert, " has ", expert.rows, " rows, ", expert.valid_rows,
                              " copies and ", expert.remote_bands, " remote bands, should have ", extent.rows, ", ",
                              extent.valid_rows, " and ", ceil_div(extent.remote_rows, tile_m)));
    }
    next_row += ceil_div(extent.rows, tile_m) * tile_m;
    gemm_rows += extent.rows;
    valid_rows += extent.valid_rows;
  }
  if (plan.rows != next_row || plan.gemm_rows != gemm_rows || plan.valid_rows != valid_rows) {
    findings.push_back(text("rows, gemm_rows, valid_rows are ", plan.rows, ", ", plan.gemm_rows, ", ", plan.valid_rows,
                            ", the experts give ", next_row, ", ", gemm_rows, ", ", valid_rows));
  }
  if (plan.tiles_n != ceil_div(plan.n, plan.options.tile_n)) {
    findings.push_back(text("tiles_n is ", plan.tiles_n, ", should be ", ceil_div(plan.n, plan.options.tile_n)));
  }
}

bool holds_remote_row(const PlanData& plan, int64_t band) {
  const int64_t begin = band * plan.options.tile_m, end = begin + plan.options.tile_m;
  return std::any_of(plan.runs.begin(), plan.runs.end(), [&](const Run& run) {
    return run.owner != plan.rank && run.row_count > 0 && run.row_begin < end && run.row_begin + run.row_count > begin;
  });
}

// The groups lie side by side in the list, each of consecutive bands of one expert, all of its entries in agreement.
void check_groups(const PlanData& plan, Findings& findings) {
  const auto count = static_cast<int64_t>(plan.order.size());
  for (int64_t begin = 0; begin < count;) {
    const ScheduledBand& head = plan.order[static_cast<size_t>(begin)];
    if (head.group_begin != begin || head.group_size < 1 || head.group_size > plan.options.group ||
        begin + head.group_size > count) {
      findings.push_back(text("order: the group at position ", begin, " says that it begins at ", head.group_begin,
                              " and has ", head.group_size, " bands"));
      return;
    }
    for (int64_t i = begin; i < begin + head.group_size; ++i) {
      const ScheduledBand& entry = plan.order[static_cast<size_t>(i)];
      if (entry.group_begin != head.group_begin || entry.group_size != head.group_size || entry.expert != head.expert) {
        findings.push_back(text("order: position ", i, " and the head of its group disagree"));
        return;
      }
      if (entry.band != head.band + (i - begin)) {
        findings.push_back(text("order: position ", i, " holds band ", entry.band, ", its group begins with band ",
                                head.band, " at position ", begin, ": bands of a group are consecutive"));
        return;
      }
    }
    begin += head.group_size;
  }
}

void check_order(const PlanData& plan, Findings& findings) {
  const int64_t bands = plan.rows / plan.options.tile_m;
  std::vector<int> times(static_cast<size_t>(bands), 0);
  int32_t last_expert = -1;
  bool local_seen = false;  // of the expert
  bool held_back = false;   // local bands that do not stand behind the remote ones of their expert: nothing is sent
  for (size_t i = 0; i < plan.order.size(); ++i) {
    const ScheduledBand& entry = plan.order[i];
    if (entry.band < 0 || entry.band >= bands) {
      findings.push_back(text("order: position ", i, " names band ", entry.band, " of ", bands));
      return;
    }
    ++times[static_cast<size_t>(entry.band)];
    const bool remote = holds_remote_row(plan, entry.band);
    local_seen &= entry.expert == last_expert;
    held_back |= !remote && entry.expert != last_expert;
    last_expert = entry.expert;
    if (remote && (local_seen || held_back)) {
      findings.push_back(text("order: remote band ", entry.band, " comes behind local ones",
                              local_seen ? " of its expert" : " that were held back"));
    }
    local_seen |= !remote;
    const ExpertRows* expert = expert_of(plan, entry.expert);
    if (expert == nullptr || entry.band < expert->first_band || entry.band >= expert->first_band + expert->bands) {
      findings.push_back(text("order: band ", entry.band, " is not of expert ", entry.expert));
    }
  }
  check_groups(plan, findings);
  for (int64_t band = 0; band < bands; ++band) {
    if (const int seen = times[static_cast<size_t>(band)]; seen != 1) {
      findings.push_back(text("order: band ", band, " is scheduled ", seen, " times"));
    }
  }
}

void check_segments(const PlanData& plan, Findings& findings) {
  const int64_t tile_m = plan.options.tile_m;
  std::vector<int64_t> done_at(static_cast<size_t>(plan.rows / tile_m), -1);  // position of each band
  for (size_t i = 0; i < plan.order.size(); ++i) {
    const auto band = static_cast<size_t>(plan.order[i].band);
    if (band < done_at.size()) done_at[band] = static_cast<int64_t>(i);
  }
  std::vector<int64_t> sent(plan.runs.size(), 0);  // rows of each run that segments so far hold
  int64_t last_done = -1;
  for (size_t i = 0; i < plan.segments.size(); ++i) {
    const Segment& segment = plan.segments[i];
    const std::string what = text("segment ", i);
    const auto run = std::find_if(plan.runs.begin(), plan.runs.end(), [&](const Run& candidate) {
      return candidate.expert == segment.expert && candidate.owner == segment.peer;
    });
    if (run == plan.runs.end() || segment.peer == plan.rank) {
      findings.push_back(text(what, " is of no remote run: expert ", segment.expert, ", peer ", segment.peer));
      continue;
    }
    int64_t& rows = sent[static_cast<size_t>(run - plan.runs.begin())];
    if (segment.row_begin != run->row_begin + rows || segment.remote_row != run->remote_row + rows) {
      findings.push_back(text(what, " sends row ", segment.row_begin, " to staging row ", segment.remote_row,
                              ", the run goes on at ", run->row_begin + rows, " and ", run->remote_row + rows));
    }
    rows += segment.row_count;
    const int64_t row_end = segment.row_begin + segment.row_count;
    if (segment.row_count < 1 || segment.first_band != segment.row_begin / tile_m ||
        segment.last_band != (row_end - 1) / tile_m) {
      findings.push_back(text(what, " holds rows ", segment.row_begin, "..", row_end, " and names the bands ",
                              segment.first_band, "..", segment.last_band));
      continue;
    }
    if (row_end % tile_m != 0 && row_end != run->row_begin + run->row_count) {
      findings.push_back(text(what, " is cut at row ", row_end, ", not at a band border"));
    }
    const int64_t bands = int64_t{segment.last_band} - segment.first_band + 1;
    const bool outermost = i == 0 || i + 1 == plan.segments.size();
    if (bands > (outermost ? 1 : plan.options.bands_per_segment)) {
      findings.push_back(text(what, " holds ", bands, " bands"));
    }
    const int64_t done =
        static_cast<size_t>(segment.last_band) < done_at.size() ? done_at[static_cast<size_t>(segment.last_band)] : -1;
    if (done < last_done) findings.push_back(text(what, " is done before the segment in front of it"));
    last_done = std::max(last_done, done);
  }
  for (size_t i = 0; i < plan.runs.size(); ++i) {
    const Run& run = plan.runs[i];
    const int64_t wanted = run.owner == plan.rank ? 0 : run.row_count;
    if (sent[i] != wanted) {
      findings.push_back(
          text("segments send ", sent[i], " of ", wanted, " rows of expert ", run.expert, " to owner ", run.owner));
    }
  }
}

void check_owner_side(const PlanData& plan, const RouteCounts& counts, Findings& findings) {
  const auto world = static_cast<size_t>(plan.placement.world());
  if (plan.dispatch_row.size() != static_cast<size_t>(plan.placement.experts())) {
    findings.push_back(text("dispatch_row has ", plan.dispatch_row.size(), " entries"));
  }
  if (plan.returned_rows.size() != world) {
    findings.push_back(text("returned_rows has ", plan.returned_rows.size(), " entries"));
  }
  if (plan.dispatched_rows.size() != world) {
    findings.push_back(text("dispatched_rows has ", plan.dispatched_rows.size(), " entries"));
  }
  const auto own = counts.row(plan.rank);
  int64_t row = 0;
  for (int32_t expert = 0; expert <= plan.placement.experts(); ++expert) {
    if (plan.staging_row.size() != own.size() + 1 || plan.staging_row[static_cast<size_t>(expert)] != row) {
      findings.push_back(text("staging_row of expert ", expert, " is not ", row));
      return;
    }
    if (expert < plan.placement.experts()) row += own[static_cast<size_t>(expert)];
  }
  if (plan.staging_rows != row) findings.push_back(text("staging_rows is ", plan.staging_rows, ", should be ", row));
  for (int32_t owner = 0; owner < plan.placement.world(); ++owner) {
    if (plan.copies_of.size() != static_cast<size_t>(plan.placement.world()) ||
        plan.copies_of[static_cast<size_t>(owner)] != counts.copies_of(owner)) {
      findings.push_back(text("copies_of owner ", owner, " is not ", counts.copies_of(owner)));
      return;
    }
  }
}

// Rows that the plans' segments and local runs put into (or keep out of) each owner's staging.
void check_staging(std::span<const Plan> plans, Findings& findings) {
  for (size_t owner = 0; owner < plans.size(); ++owner) {
    std::vector<RowRange> ranges;
    int64_t covered = 0;
    for (const Plan& plan : plans) {
      for (const Segment& segment : plan->segments) {
        if (segment.peer != static_cast<int32_t>(owner)) continue;
        ranges.push_back({segment.remote_row, segment.remote_row + segment.row_count,
                          text("rank ", plan->rank, ", expert ", segment.expert)});
        covered += segment.row_count;
      }
    }
    for (const Run& run : plans[owner]->runs) {
      if (run.owner != static_cast<int32_t>(owner)) continue;
      ranges.push_back({run.remote_row, run.remote_row + run.row_count, text("local expert ", run.expert)});
      covered += run.row_count;
    }
    for (const RowRange& range : ranges) {
      if (range.begin < 0 || range.end > plans[owner]->staging_rows) {
        findings.push_back(text("staging of rank ", owner, ": ", range.what, " ends at row ", range.end, " of ",
                                plans[owner]->staging_rows));
      }
    }
    if (covered != plans[owner]->staging_rows) {
      findings.push_back(
          text("staging of rank ", owner, ": ", covered, " of ", plans[owner]->staging_rows, " rows are covered"));
    }
    check_disjoint(std::move(ranges), text("staging of rank ", owner).c_str(), findings);
  }
}

void check_agreement(std::span<const Plan> plans, Findings& findings) {
  for (const Plan& host : plans) {
    for (const Plan& owner : plans) {
      const auto host_rank = static_cast<size_t>(host->rank), owner_rank = static_cast<size_t>(owner->rank);
      int64_t sent = 0, dispatched = 0;
      for (const Segment& segment : host->segments) {
        if (segment.peer == owner->rank) sent += segment.row_count;
      }
      for (const Run& run : host->runs) {
        if (run.owner != owner->rank) continue;
        dispatched += run.row_count;
        if (const int64_t row = owner->dispatch_row[static_cast<size_t>(run.expert)]; row != run.row_begin) {
          findings.push_back(text("rank ", owner->rank, " dispatches copies for expert ", run.expert, " to row ", row,
                                  ", rank ", host->rank, " keeps them from row ", run.row_begin));
        }
      }
      if (owner->returned_rows[host_rank] != sent) {
        findings.push_back(text("rank ", owner->rank, " expects ", owner->returned_rows[host_rank], " rows from rank ",
                                host->rank, ", which sends ", sent));
      }
      if (host->dispatched_rows[owner_rank] != dispatched) {
        findings.push_back(text("rank ", host->rank, " expects ", host->dispatched_rows[owner_rank],
                                " dispatched rows from rank ", owner->rank, ", its runs hold ", dispatched));
      }
    }
  }
}

}  // namespace

std::vector<std::string> check_plan(const Plan& plan, const RouteCounts& counts) {
  Findings findings;
  check_experts(*plan, counts, findings);
  check_runs(*plan, counts, findings);
  check_order(*plan, findings);
  check_segments(*plan, findings);
  check_owner_side(*plan, counts, findings);
  return findings;
}

std::vector<std::string> check_plans(std::span<const Plan> plans, const RouteCounts& counts) {
  Findings findings;
  for (size_t rank = 0; rank < plans.size(); ++rank) {
    if (plans[rank]->rank != static_cast<int32_t>(rank) || plans[rank].world() != static_cast<int32_t>(plans.size())) {
      findings.push_back(
          text("plans must be those of all ranks in order: position ", rank, " holds ", plans[rank].repr()));
      return findings;
    }
    for (const std::string& finding : check_plan(plans[rank], counts)) {
      findings.push_back(text("rank ", rank, ": ", finding));
    }
  }
  check_staging(plans, findings);
  const bool whole = std::ranges::all_of(plans, [](const Plan& plan) {
    const auto world = static_cast<size_t>(plan.world());
    return plan->dispatch_row.size() == static_cast<size_t>(plan->placement.experts()) &&
           plan->returned_rows.size() == world && plan->dispatched_rows.size() == world;
  });
  if (whole) check_agreement(plans, findings);
  return findings;
}

}  // namespace tileoverlap
