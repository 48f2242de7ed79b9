#include "tileoverlap/plan/capacity.hpp"

#include <algorithm>
#include <limits>

#include "core/text.hpp"
#include "tileoverlap/core/error.hpp"
#include "tileoverlap/core/math.hpp"

namespace tileoverlap {
namespace {

// Most rows of one owner that `experts` experts can hold.
int64_t max_copies(int64_t experts, const Capacity& capacity) {
  if (experts == 0) return 0;
  const int64_t slots = capacity.distinct ? min64(capacity.top_k, experts) : capacity.top_k;
  return capacity.max_tokens * slots;
}

// Most runs of one owner that hold a row.
int64_t max_runs(int64_t experts, const Capacity& capacity) { return min64(experts, max_copies(experts, capacity)); }

void check(const Capacity& capacity) {
  if (capacity.max_tokens < 0) throw InvalidArgument(text("max_tokens must not be negative, got ", capacity.max_tokens));
  if (capacity.top_k <= 0) throw InvalidArgument(text("top_k must be positive, got ", capacity.top_k));
  if (capacity.max_tokens > std::numeric_limits<int32_t>::max() / capacity.top_k) {
    throw InvalidArgument(text("max_tokens * top_k must be below 2^31, got ", capacity.max_tokens, " * ", capacity.top_k));
  }
}

// Product of sizes; a report that wrapped around would size a buffer.
int64_t bytes_of(int64_t rows, int64_t row_elements, int64_t element_bytes) {
  int64_t row_bytes = 0, bytes = 0;
  if (__builtin_mul_overflow(row_elements, element_bytes, &row_bytes) ||
      __builtin_mul_overflow(rows, row_bytes, &bytes)) {
    throw InvalidArgument(text(rows, " rows of ", row_elements, " elements of ", element_bytes, " bytes pass 2^63 bytes"));
  }
  return bytes;
}

}  // namespace

int64_t max_padded_bands(int64_t experts, int64_t owner_count, const Capacity& capacity, int32_t tile_m) {
  check(capacity);
  const int64_t runs = max_runs(experts, capacity);
  if (runs == 0) return 0;
  // A run's first row opens a band and each further tile_m rows another: the worst routing gives every run one row
  // and spends what is left in whole bands.
  const int64_t spread = runs + (max_copies(experts, capacity) - runs) / tile_m;
  // One run holds at most max_tokens rows where a token names an expert once.
  const int64_t tallest = capacity.distinct ? capacity.max_tokens : max_copies(experts, capacity);
  return owner_count * min64(spread, runs * ceil_div(tallest, tile_m));
}

int64_t max_bands(const Placement& placement, int32_t rank, const Capacity& capacity, const PlanOptions& options) {
  check(capacity);
  const int64_t experts = placement.experts_on(rank);
  const int64_t world = placement.world();
  // The local run is not padded, but its last band is a whole one all the same.
  if (options.layout == Layout::kOwnerAligned) return max_padded_bands(experts, world, capacity, options.tile_m);
  const int64_t copies = world * max_copies(experts, capacity);
  const int64_t filled = min64(experts, copies);
  return filled + (copies - filled) / options.tile_m;
}

int64_t max_segments(const Placement& placement, int32_t rank, const Capacity& capacity, const PlanOptions& options) {
  check(capacity);
  const int64_t experts = placement.experts_on(rank);
  const int64_t remote_owners = placement.world() - 1;
  // One more than a run's share of whole bands where the run starts inside a band.
  return remote_owners * (2 * max_runs(experts, capacity) + max_copies(experts, capacity) / options.tile_m);
}

SizeReport size_report(const Placement& placement, int32_t rank, const Capacity& capacity, DType dtype, int64_t k,
                       int64_t n, const PlanOptions& options) {
  if (rank < 0 || rank >= placement.world()) {
    throw InvalidArgument(text("rank must lie in 0..", placement.world() - 1, ", got ", rank));
  }
  if (k <= 0 || n <= 0) throw InvalidArgument(text("k and n must be positive, got k = ", k, ", n = ", n));
  if (options.tile_m <= 0 || options.tile_n <= 0) {
    throw InvalidArgument(text("tile_m and tile_n must be positive, got ", options.tile_m, " and ", options.tile_n));
  }
  const int64_t bands = max_bands(placement, rank, capacity, options);
  const int64_t rows = bands * options.tile_m;
  SizeReport report;
  report.staging_bytes = bytes_of(capacity.max_tokens * capacity.top_k, n, size_of(dtype));
  report.output_bytes = bytes_of(rows, n, size_of(dtype));
  report.input_bytes = bytes_of(rows, k, size_of(dtype));
  report.flag_bytes = bytes_of(bands, ceil_div(n, options.tile_n), sizeof(uint64_t));
  report.counter_bytes = bytes_of(4, placement.world(), sizeof(uint64_t));  // arrivals and credits, both ways
  for (const int64_t part : {report.staging_bytes, report.output_bytes, report.input_bytes, report.flag_bytes,
                             report.counter_bytes}) {
    if (__builtin_add_overflow(report.total_bytes, part, &report.total_bytes)) {
      throw InvalidArgument("the parts of the workspace pass 2^63 bytes");
    }
  }
  return report;
}

}  // namespace tileoverlap
