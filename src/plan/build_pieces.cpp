#include "plan/build_pieces.hpp"

#include <algorithm>

#include "core/text.hpp"
#include "tileoverlap/core/error.hpp"

namespace tileoverlap {
namespace {

template <class Visit>
void for_each_piece(const PlanData& plan, int64_t piece_rows, Visit visit) {
  const int64_t tile_m = plan.options.tile_m;
  for (size_t number = 0; number < plan.segments.size(); ++number) {
    const Segment& segment = plan.segments[number];
    for (int64_t done = 0; done < segment.row_count; done += piece_rows) {
      const int64_t row = segment.row_begin + done;
      const int64_t rows = min64(piece_rows, segment.row_count - done);
      visit(Piece{.first_band = static_cast<int32_t>(row / tile_m),
                  .last_band = static_cast<int32_t>((row + rows - 1) / tile_m),
                  .peer = segment.peer,
                  .segment = static_cast<int32_t>(number),
                  .expert = segment.expert,
                  .row_count = static_cast<int32_t>(rows),
                  .row_begin = row,
                  .remote_row = segment.remote_row + done});
    }
  }
}

int64_t count_pieces(const PlanData& plan, int64_t piece_rows) {
  int64_t pieces = 0;
  for (const Segment& segment : plan.segments) pieces += ceil_div(segment.row_count, piece_rows);
  return pieces;
}

}  // namespace

void build_pieces(const PlanData& plan, int64_t piece_rows, std::vector<Piece>& pieces) {
  pieces.clear();
  pieces.reserve(static_cast<size_t>(count_pieces(plan, piece_rows)));
  for_each_piece(plan, piece_rows, [&](const Piece& piece) { pieces.push_back(piece); });
}

int64_t max_pieces(const Placement& placement, int32_t rank, const Capacity& capacity, const PlanOptions& options,
                   int64_t piece_rows) {
  if (piece_rows <= 0) throw InvalidArgument(text("piece_rows must be positive, got ", piece_rows));
  const int64_t segments = max_segments(placement, rank, capacity, options);
  // A segment of r rows becomes at most 1 + r / piece_rows pieces.
  const int64_t experts = placement.experts_on(rank);
  const int64_t slots = capacity.distinct ? min64(capacity.top_k, experts) : capacity.top_k;
  const int64_t remote_rows = experts == 0 ? 0 : (placement.world() - 1) * capacity.max_tokens * slots;
  return segments + remote_rows / piece_rows;
}

void write_plan(const PlanData& plan, int64_t piece_rows, const DevicePlanLayout& layout, std::byte* image) {
  const auto bands = static_cast<int64_t>(plan.order.size());
  const int64_t pieces = count_pieces(plan, piece_rows);
  if (bands > layout.max_bands || pieces > layout.max_pieces) {
    throw CapacityError(text("the plan of rank ", plan.rank, " has ", bands, " bands and ", pieces,
                             " pieces to send, there is room for ", layout.max_bands, " bands and ", layout.max_pieces,
                             " pieces"));
  }
  const DevicePlan to = layout.at(image);
  *to.head = {.bands = static_cast<int32_t>(bands),
              .refused_by = -1,
              .pieces = pieces,
              .staging_rows = plan.staging_rows,
              .fingerprint = plan.fingerprint};
  std::copy(plan.staging_row.begin(), plan.staging_row.end(), to.staging_row);
  std::copy(plan.dispatch_row.begin(), plan.dispatch_row.end(), to.dispatch_row);
  std::copy(plan.returned_rows.begin(), plan.returned_rows.end(), to.returned_rows);
  std::copy(plan.dispatched_rows.begin(), plan.dispatched_rows.end(), to.dispatched_rows);
  std::copy(plan.order.begin(), plan.order.end(), to.order);
  std::transform(plan.runs.begin(), plan.runs.end(), to.runs, [](const Run& run) {
    return StoredRun{.row_begin = static_cast<int32_t>(run.row_begin),
                     .row_count = static_cast<int32_t>(run.row_count),
                     .owner = run.owner,
                     .remote_row = static_cast<int32_t>(run.remote_row)};
  });
  Piece* next = to.pieces;
  for_each_piece(plan, piece_rows, [&](const Piece& piece) { *next++ = piece; });
}

}  // namespace tileoverlap
