#pragma once
// 64-bit integer helpers shared by host and device code. Arguments are non-negative.

#include <cstdint>

#include "tileoverlap/core/api.hpp"

namespace tileoverlap {

TILEOVERLAP_HD constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
TILEOVERLAP_HD constexpr int64_t align_up(int64_t a, int64_t multiple) { return ceil_div(a, multiple) * multiple; }
TILEOVERLAP_HD constexpr int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }
TILEOVERLAP_HD constexpr int64_t max64(int64_t a, int64_t b) { return a > b ? a : b; }

// Index of element (row, column) of a row-major matrix. 64-bit from the start: 299,594 rows of 7168 pass 2^31.
TILEOVERLAP_HD constexpr int64_t element_offset(int64_t row, int64_t row_elements, int64_t column = 0) {
  return row * row_elements + column;
}

}  // namespace tileoverlap
