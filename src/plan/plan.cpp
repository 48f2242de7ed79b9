#include "tileoverlap/plan/plan.hpp"

#include <limits>

#include "core/text.hpp"
#include "plan/build.hpp"
#include "routing/check_rank.hpp"
#include "tileoverlap/core/error.hpp"

namespace tileoverlap {

void build::check_inputs(const Placement& placement, int32_t rank, const RouteCounts& counts, int64_t n,
                         const PlanOptions& options) {
  check_rank(placement, rank);
  if (counts.world() != placement.world() || counts.experts() != placement.experts()) {
    throw InvalidArgument(text("counts are [", counts.world(), ", ", counts.experts(), "], the placement needs [",
                               placement.world(), ", ", placement.experts(), "]"));
  }
  if (n <= 0) throw InvalidArgument(text("n must be positive, got ", n));
  if (n > std::numeric_limits<int32_t>::max()) throw InvalidArgument(text("n must be below 2^31, got ", n));
  check_options(options);
}

PlanData build::plan_work(const Placement& placement, int32_t rank, const RouteCounts& counts, int64_t n,
                          const PlanOptions& options) {
  PlanData plan{.placement = placement, .rank = rank, .n = static_cast<int32_t>(n), .options = options};
  plan.tiles_n = static_cast<int32_t>(ceil_div(n, options.tile_n));
  lay_out_rows(counts, plan);
  schedule_bands(plan);
  cut_segments(plan);
  return plan;
}

namespace {

// Mixes what all ranks' plans of one call have in common (FNV-1a over words, with a final mix). Not for adversaries:
// it catches ranks that run different calls.
uint64_t fingerprint(const Placement& placement, const RouteCounts& counts, int64_t n, const PlanOptions& options) {
  uint64_t hash = 0xcbf29ce484222325u;
  const auto add = [&](int64_t value) { hash = (hash ^ static_cast<uint64_t>(value)) * 0x100000001b3u; };
  for (const int32_t begin : placement.expert_begin()) add(begin);
  for (const int32_t count : counts.values()) add(count);
  for (const int64_t value :
       {n, int64_t{options.tile_m}, int64_t{options.tile_n}, static_cast<int64_t>(options.layout)}) {
    add(value);
  }
  hash ^= hash >> 32;
  return hash == 0 ? 1 : hash;
}

}  // namespace

const Run& Plan::run(int32_t expert, int32_t owner) const {
  const PlanData& plan = *data_;
  const int32_t begin = plan.placement.begin(plan.rank), end = plan.placement.end(plan.rank);
  if (expert < begin || expert >= end || owner < 0 || owner >= world()) {
    throw InvalidArgument(text("rank ", plan.rank, " of ", world(), " hosts the experts ", range_text(begin, end),
                               ", got expert ", expert, " and owner ", owner));
  }
  const int64_t position = position_of(plan.rank, owner, world());
  return plan.runs[static_cast<size_t>(int64_t{expert - begin} * world() + position)];
}

std::string Plan::repr() const {
  const PlanData& plan = *data_;
  return text("Plan(rank=", plan.rank, " of ", world(), ", n=", plan.n, ", experts=", plan.experts.size(),
              ", valid_rows=", plan.valid_rows, ", gemm_rows=", plan.gemm_rows, ", bands=", bands(),
              ", segments=", plan.segments.size(), ", ", tileoverlap::repr(plan.options), ")");
}

Plan make_plan(const Placement& placement, int32_t rank, const RouteCounts& counts, int64_t n,
               const PlanOptions& options) {
  build::check_inputs(placement, rank, counts, n, options);
  auto plan = std::make_shared<PlanData>(build::plan_work(placement, rank, counts, n, options));
  plan->fingerprint = fingerprint(placement, counts, n, options);
  build::locate_own_copies(counts, *plan);
  return Plan(std::move(plan));
}

}  // namespace tileoverlap
