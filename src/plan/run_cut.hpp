#pragma once
// Segments and pieces of one run, each found by its number.

#include <cstdint>

#include "plan/planner_scratch.hpp"
#include "plan/planner_sums.hpp"
#include "tileoverlap/plan/options.hpp"

namespace tileoverlap::planner {

// How one run is cut, as in cut_segments and build_pieces, with every segment and piece found by its number: one band
// at the head of the schedule, `body` bands in segments of bands_per_segment, one band at the tail of the schedule.
// A run has less than 2^31 rows, so what counts inside it is 32-bit.
struct RunCut {
  int64_t row_begin, first_band;
  int32_t row_count, tile_m, bands_per_segment, piece_rows;
  int32_t head, body, segments;

  // The run must hold a row.
  TILEOVERLAP_HD static RunCut of(const RunToSend& run, bool first, bool last, const PlanOptions& options,
                                  int64_t piece_rows) {
    RunCut cut{.row_begin = run.row_begin,
               .first_band = run.row_begin / options.tile_m,
               .row_count = run.row_count,
               .tile_m = options.tile_m,
               .bands_per_segment = options.bands_per_segment,
               .piece_rows = static_cast<int32_t>(min64(piece_rows, run.row_count)),
               .head = first ? 1 : 0,
               .body = 0,
               .segments = 0};
    const int32_t rest = cut.band_of(run.row_count - 1) + 1 - cut.head;
    const int32_t tail = last && rest > 0 ? 1 : 0;
    cut.body = rest - tail;
    cut.segments = cut.head + ceil_div32(cut.body, cut.bands_per_segment) + tail;
    return cut;
  }

  // Band of a row, both counted from the run's first.
  TILEOVERLAP_HD int32_t band_of(int32_t row) const {
    const auto skipped = static_cast<uint32_t>(row_begin - first_band * tile_m);
    return static_cast<int32_t>((skipped + static_cast<uint32_t>(row)) / static_cast<uint32_t>(tile_m));
  }
  // Counted from the run's first row.
  TILEOVERLAP_HD int32_t segment_begin(int32_t segment) const {
    if (segment == 0) return 0;
    if (segment == segments) return row_count;
    const int64_t bands = head + min64(static_cast<int64_t>(segment - head) * bands_per_segment, body);
    return static_cast<int32_t>((first_band + bands) * tile_m - row_begin);
  }
  TILEOVERLAP_HD int32_t pieces_of(int32_t segment) const {
    return ceil_div32(segment_begin(segment + 1) - segment_begin(segment), piece_rows);
  }
  // Segments that are neither the first nor one of the last two: they are all alike.
  TILEOVERLAP_HD int32_t whole_segments() const { return segments > 3 ? segments - 3 : 0; }
  TILEOVERLAP_HD int32_t pieces_of_whole() const {
    const int64_t rows = min64(static_cast<int64_t>(bands_per_segment) * tile_m, row_count);
    return ceil_div32(static_cast<int32_t>(rows), piece_rows);
  }

  TILEOVERLAP_HD int32_t pieces_before(int32_t segment) const {
    if (segment == 0) return 0;
    const int32_t whole = segment - 1 < whole_segments() ? segment - 1 : whole_segments();
    int32_t pieces = pieces_of(0) + whole * pieces_of_whole();
    for (int32_t other = whole + 1; other < segment; ++other) pieces += pieces_of(other);  // two at most
    return pieces;
  }
  TILEOVERLAP_HD int32_t pieces() const { return pieces_before(segments); }

  TILEOVERLAP_HD int32_t segment_of(int32_t piece) const {
    const int32_t first = pieces_of(0);
    if (piece < first) return 0;
    const int32_t whole = (piece - first) / pieces_of_whole();
    int32_t segment = 1 + (whole < whole_segments() ? whole : whole_segments());
    while (piece >= pieces_before(segment + 1)) ++segment;  // once at most
    return segment;
  }
};

}  // namespace tileoverlap::planner
