#include "execute/engine_options.hpp"

#include <algorithm>

namespace tileoverlap {

SizeReport size_report(const EngineOptions& options, int32_t rank) {
  const auto with_input = [&](int64_t width) {
    return size_report(options.placement, rank, options.capacity, options.dtype, width, options.n, options.plan);
  };
  SizeReport report = with_input(options.k);
  if (has_first_projection(options)) report.projected_bytes = report.input_bytes;
  report.input_bytes = options.input_width > 0 ? with_input(options.input_width).input_bytes : 0;
  return report;
}

int64_t largest_of_ranks(const EngineOptions& options, int64_t SizeReport::*bytes) {
  int64_t largest = 0;
  for (int32_t rank = 0; rank < options.placement.world(); ++rank) {
    largest = std::max(largest, size_report(options, rank).*bytes);
  }
  return largest;
}

}  // namespace tileoverlap
