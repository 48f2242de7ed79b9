// Plans the return path of rank 0 by hand-made counts and prints where its experts' rows lie.

#include <tileoverlap/tileoverlap.hpp>

#include <cstdio>

int main() {
  // Two ranks, two experts each. Rank 0 sends 3 and 1 copies to its own experts, rank 1 sends them 2 and 4.
  const auto placement = tileoverlap::Placement::even(2, 4);
  const tileoverlap::RouteCounts counts(placement, {3, 1, 0, 0, 2, 4, 0, 0});
  const auto plan = tileoverlap::make_plan(placement, 0, counts, 64, {.tile_m = 4, .tile_n = 32});

  std::printf("tileoverlap %s\n", tileoverlap::kVersion);
  for (const auto& expert : plan->experts) {
    std::printf("expert %d: rows %d..%d\n", expert.expert, static_cast<int>(expert.row_begin),
                static_cast<int>(expert.row_begin + expert.rows));
  }
  try {
    tileoverlap::parse_layout("diagonal");
  } catch (const tileoverlap::InvalidArgument&) {  // exceptions cross the library's edge with their type
    return 0;
  }
  return 1;
}
