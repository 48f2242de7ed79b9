#pragma once
// What is sent in one go.

#include <cstdint>

namespace tileoverlap {

// Contiguous rows of one run, sent to their owner as soon as the bands they touch are published. `remote_row`
// indexes the owner's staging rows; two segments of any two ranks never overlap there, so no order between peers
// is needed.
struct Segment {
  int32_t first_band;  // bands [first_band, last_band] hold the rows
  int32_t last_band;
  int32_t peer;    // the rows' owner
  int32_t expert;  // global id
  int64_t row_begin;
  int64_t row_count;
  int64_t remote_row;
};

}  // namespace tileoverlap
