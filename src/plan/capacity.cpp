#include "tileoverlap/plan/capacity.hpp"

#include <algorithm>
#include <initializer_list>
#include <limits>

#include "core/text.hpp"
#include "routing/check_rank.hpp"
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

void check(const Placement& placement, int32_t rank, const PlanOptions& options) {
  check_rank(placement, rank);
  if (options.tile_m <= 0 || options.tile_n <= 0) {
    throw InvalidArgument(text("tile_m and tile_n must be positive, got ", options.tile_m, " and ", options.tile_n));
  }
}

void check(const Capacity& capacity) {
  if (capacity.max_tokens < 0)
    throw InvalidArgument(text("max_tokens must not be negative, got ", capacity.max_tokens));
  if (capacity.top_k <= 0) throw InvalidArgument(text("top_k must be positive, got ", capacity.top_k));
  if (capacity.max_tokens > std::numeric_limits<int32_t>::max() / capacity.top_k) {
    throw InvalidArgument(
        text("max_tokens * top_k must be below 2^31, got ", capacity.max_tokens, " * ", capacity.top_k));
  }
}

// Product of sizes, none negative; a product that wrapped around would size a buffer.
int64_t checked_product(std::initializer_list<int64_t> factors) {
  int64_t product = 1;
  for (const int64_t factor : factors) {
    if (__builtin_mul_overflow(product, factor, &product)) {
      throw InvalidArgument(text("sizes ", shape_text(factors.begin(), static_cast<int64_t>(factors.size())),
                                 " multiply to more than 2^63"));
    }
  }
  return product;
}

}  // namespace

int64_t max_padded_bands(int64_t experts, int64_t owner_count, const Capacity& capacity, int32_t tile_m) {
  check(capacity);
  if (tile_m <= 0) throw InvalidArgument(text("tile_m must be positive, got ", tile_m));
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
  check(placement, rank, options);
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
  check(placement, rank, options);
  check(capacity);
  const int64_t experts = placement.experts_on(rank);
  const int64_t remote_owners = placement.world() - 1;
  // One more than a run's share of whole bands where the run starts inside a band.
  return remote_owners * (2 * max_runs(experts, capacity) + max_copies(experts, capacity) / options.tile_m);
}

int64_t max_rows(const Placement& placement, int32_t rank, const Capacity& capacity, const PlanOptions& options) {
  return checked_product({max_bands(placement, rank, capacity, options), options.tile_m});
}

SizeReport size_report(const Placement& placement, int32_t rank, const Capacity& capacity, DType dtype, int64_t k,
                       int64_t n, const PlanOptions& options) {
  if (k <= 0 || n <= 0) throw InvalidArgument(text("k and n must be positive, got k = ", k, ", n = ", n));
  const int64_t rows = max_rows(placement, rank, capacity, options);
  const int64_t flag_bytes = sizeof(uint64_t);
  SizeReport report;
  report.staging_bytes = checked_product({capacity.max_tokens * capacity.top_k, n, size_of(dtype)});
  report.output_bytes = checked_product({rows, n, size_of(dtype)});
  report.input_bytes = checked_product({rows, k, size_of(dtype)});
  report.flag_bytes = checked_product({rows / options.tile_m, ceil_div(n, options.tile_n), flag_bytes});
  return report;
}

int64_t SizeReport::total_bytes() const {
  int64_t total = 0;
  for (const int64_t part : {staging_bytes, output_bytes, input_bytes, projected_bytes, flag_bytes, counter_bytes}) {
    if (__builtin_add_overflow(total, part, &total)) throw InvalidArgument("the workspace passes 2^63 bytes");
  }
  return total;
}

}  // namespace tileoverlap
