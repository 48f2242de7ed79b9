#pragma once
// A rank's plan as kernels read it: what the GPU needs of PlanData, in device memory of a fixed capacity.

#include <cstddef>
#include <cstdint>

#include "tileoverlap/core/math.hpp"
#include "tileoverlap/plan/schedule.hpp"

namespace tileoverlap {

// What one consumer CTA moves at a time: a part of a segment.
struct Piece {
  int32_t first_band;  // bands [first_band, last_band] hold the rows
  int32_t last_band;
  int32_t peer;     // the rows' owner
  int32_t segment;  // number of the segment in the plan
  int32_t expert;   // global id
  int32_t row_count;
  int64_t row_begin;   // in this rank's output
  int64_t remote_row;  // in the owner's staging
};

// Rows of one owner, of one expert, as the GEMM stores them where they are wanted. 32 bits: what TMA counts in; prepare
// refuses more rows.
struct StoredRun {
  int32_t row_begin, row_count;  // in this rank's rows
  int32_t owner;                 // this rank: the rows stay
  int32_t remote_row;            // in the owner's staging, of remote rows
};

struct PlanHead {
  int32_t bands;
  int32_t refused_by;    // the first rank that refused the call, which then has no bands and no copies; else -1
  int64_t pieces;        // in the order in which their segments are sent
  int64_t staging_rows;  // copies of this rank
  uint64_t fingerprint;  // of PlanData
};

// Pointers into one allocation. Borrows.
struct DevicePlan {
  PlanHead* head;
  ScheduledBand* order;      // [bands]
  Piece* pieces;             // [pieces]
  StoredRun* runs;           // [experts on this rank][world], in row order; not written for a refused call
  int64_t* staging_row;      // [experts of all ranks + 1], as in PlanData
  int64_t* dispatch_row;     // [experts of all ranks], as in PlanData
  int64_t* returned_rows;    // [world], as in PlanData
  int64_t* dispatched_rows;  // [world], as in PlanData
};

// Where the parts lie.
struct DevicePlanLayout {
  int64_t head = 0, order = 0, pieces = 0, runs = 0, staging_row = 0, dispatch_row = 0, returned_rows = 0,
          dispatched_rows = 0;
  int64_t total = 0;
  int64_t max_bands = 0, max_pieces = 0;

  // `local_experts`: on this rank.
  static DevicePlanLayout make(int32_t world, int32_t experts, int32_t local_experts, int64_t max_bands,
                               int64_t max_pieces) {
    DevicePlanLayout layout;
    layout.max_bands = max_bands;
    layout.max_pieces = max_pieces;
    const auto place = [&](int64_t bytes) {
      constexpr int64_t kAlignment = 128;
      const int64_t at = layout.total;
      layout.total = align_up(at + bytes, kAlignment);
      return at;
    };
    constexpr int64_t kRow = sizeof(int64_t);
    layout.head = place(sizeof(PlanHead));
    layout.staging_row = place((int64_t{experts} + 1) * kRow);
    layout.dispatch_row = place(experts * kRow);
    layout.returned_rows = place(world * kRow);
    layout.dispatched_rows = place(world * kRow);
    layout.runs = place(int64_t{local_experts} * world * static_cast<int64_t>(sizeof(StoredRun)));
    layout.order = place(max_bands * static_cast<int64_t>(sizeof(ScheduledBand)));
    layout.pieces = place(max_pieces * static_cast<int64_t>(sizeof(Piece)));
    return layout;
  }

  DevicePlan at(std::byte* base) const {
    const auto rows = [&](int64_t offset) { return reinterpret_cast<int64_t*>(base + offset); };
    return {.head = reinterpret_cast<PlanHead*>(base + head),
            .order = reinterpret_cast<ScheduledBand*>(base + order),
            .pieces = reinterpret_cast<Piece*>(base + pieces),
            .runs = reinterpret_cast<StoredRun*>(base + runs),
            .staging_row = rows(staging_row),
            .dispatch_row = rows(dispatch_row),
            .returned_rows = rows(returned_rows),
            .dispatched_rows = rows(dispatched_rows)};
  }
};

// Rows of a piece: about an eighth of a MiB, and no more than a band, so that a piece waits for as few flags as it can.
// Larger ones keep a lane busy for too long at the end, smaller ones are counted too often (measured: decisions.md).
inline int64_t piece_rows(int64_t row_bytes, int32_t tile_m) {
  constexpr int64_t kPieceBytes = int64_t{1} << 17;
  return max64(1, min64(tile_m, kPieceBytes / row_bytes));
}

}  // namespace tileoverlap
