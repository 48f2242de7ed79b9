// What a plan costs: flat in the number of copies, linear in bands and in world * experts. And what the owner's copy
// index costs per copy, which is the part that does grow with tokens.

#include <benchmark/benchmark.h>

#include <cstdint>
#include <vector>

#include "tileoverlap/core/borrowed_tensor.hpp"
#include "tileoverlap/dispatch/copy_index.hpp"
#include "tileoverlap/plan/plan.hpp"

namespace {

using namespace tileoverlap;

constexpr int64_t kHidden = 7168;

// Every owner sends `copies` to every expert.
RouteCounts uniform_counts(const Placement& placement, int32_t copies) {
  const auto entries = static_cast<size_t>(placement.world()) * static_cast<size_t>(placement.experts());
  return RouteCounts(placement, std::vector<int32_t>(entries, copies));
}

void plan_and_report(benchmark::State& state, const Placement& placement, int32_t copies, const PlanOptions& options) {
  const RouteCounts counts = uniform_counts(placement, copies);
  int64_t bands = 0, segments = 0;
  for (auto _ : state) {
    const Plan plan = make_plan(placement, 0, counts, kHidden, options);
    bands = plan.bands();
    segments = static_cast<int64_t>(plan->segments.size());
    benchmark::DoNotOptimize(plan->rows);
  }
  state.counters["copies_per_rank"] = static_cast<double>(copies) * placement.experts();
  state.counters["bands"] = static_cast<double>(bands);
  state.counters["segments"] = static_cast<double>(segments);
  state.counters["world_x_experts"] = static_cast<double>(placement.world()) * placement.experts();
}

// The same bands for 2^10 to 2^24 copies a rank: the tile grows with them.
void make_plan_by_copies(benchmark::State& state) {
  const auto copies = static_cast<int32_t>(state.range(0) / 256);
  plan_and_report(state, Placement::even(8, 256), copies, {.tile_m = copies});
}
BENCHMARK(make_plan_by_copies)->RangeMultiplier(4)->Range(1 << 10, 1 << 24)->Unit(benchmark::kMicrosecond);

// More bands for the same 65,536 copies a rank: the tile shrinks.
void make_plan_by_bands(benchmark::State& state) {
  plan_and_report(state, Placement::even(8, 256), 256, {.tile_m = static_cast<int32_t>(2048 / state.range(0))});
}
BENCHMARK(make_plan_by_bands)
    ->ArgName("bands_per_expert")
    ->RangeMultiplier(4)
    ->Range(1, 2048)
    ->Unit(benchmark::kMicrosecond);

// One band an expert, more and more entries of the counts matrix.
void make_plan_by_counts(benchmark::State& state) {
  const auto world = static_cast<int32_t>(state.range(0));
  plan_and_report(state, Placement::even(world, world * 32), 1, {.tile_m = 512});
}
BENCHMARK(make_plan_by_counts)->ArgName("world")->RangeMultiplier(2)->Range(1, 128)->Unit(benchmark::kMicrosecond);

// The shape of the promise: 8 ranks, 256 experts, 65,536 copies a rank, under a millisecond on one core.
void make_plan_promise(benchmark::State& state) {
  const auto layout = state.range(0) == 0 ? Layout::kOwnerAligned : Layout::kCompact;
  state.SetLabel(name(layout));
  plan_and_report(state, Placement::even(8, 256), 256, {.layout = layout});
}
BENCHMARK(make_plan_promise)->ArgName("layout")->Arg(0)->Arg(1)->Unit(benchmark::kMicrosecond);

// Each token names `top_k` experts in turn, so that every expert gets the same.
void fill_copy_index_by_copies(benchmark::State& state) {
  constexpr int32_t kTopK = 8, kExperts = 256;
  const int64_t tokens = state.range(0);
  std::vector<int32_t> ids(static_cast<size_t>(tokens * kTopK));
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>((i * 37) % kExperts);
  const Placement placement = Placement::even(8, kExperts);
  const BorrowedTensor tensor(ids.data(), DType::kInt32, {tokens, kTopK});
  std::vector<int32_t> matrix;
  for (int32_t owner = 0; owner < 8; ++owner) {
    const auto row = count_ids(placement, owner, tensor);
    matrix.insert(matrix.end(), row.begin(), row.end());
  }
  const Plan plan = make_plan(placement, 0, RouteCounts(placement, std::move(matrix)), kHidden);
  const TensorView view = check_tensor(
      tensor, {.argument = "topk_ids", .dtypes = {DType::kInt32}, .shape = {-1, -1}, .shape_names = "[T, k]"});
  CopyIndex index;
  index.reserve(tokens, kTopK);
  for (auto _ : state) {
    fill_copy_index(plan, view, index);
    benchmark::DoNotOptimize(index.gather_row.data());
  }
  state.SetItemsProcessed(state.iterations() * tokens * kTopK);
  state.counters["per_copy"] = benchmark::Counter(
      static_cast<double>(tokens * kTopK), benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}
BENCHMARK(fill_copy_index_by_copies)
    ->ArgName("tokens")
    ->RangeMultiplier(8)
    ->Range(16, 8192)
    ->Unit(benchmark::kMicrosecond);

}  // namespace

BENCHMARK_MAIN();
