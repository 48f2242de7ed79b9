#pragma once
// What the steps of the device planner leave to each other.

#include <cstddef>
#include <cstdint>

#include "plan/planner_sums.hpp"
#include "tileoverlap/core/math.hpp"

namespace tileoverlap {
namespace planner {

// A remote run, in the order in which the schedule reaches it.
struct RunToSend {
  int64_t row_begin, remote_row;
  int32_t row_count, expert, owner;
};

struct SendCount {
  int64_t segments = 0, pieces = 0;
  TILEOVERLAP_HD SendCount operator+(const SendCount& other) const {
    return {segments + other.segments, pieces + other.pieces};
  }
};

// What one step leaves to another and no array holds.
struct Notes {
  int64_t first_run = -1, last_run = -1;  // numbers of the first and the last run that is not empty
  uint64_t fingerprint = 0;               // so far
  int32_t first_split = 0;                // see first_split_place
};

}  // namespace planner

// Memory of the planner alone. Pointers into one allocation. Borrows.
struct PlannerScratch {
  planner::Notes* notes;
  int64_t* row_sums;              // [world][chunks]
  int64_t* band_sums;             // [chunks]
  int64_t* entry_sums;            // [chunks]
  planner::SendCount* send_sums;  // [chunks]
  int64_t* bands;                 // [experts of all ranks]
  int64_t* band_begin;            // [experts of all ranks + 1], counted over all ranks
  int64_t* remote_bands;          // [local experts], as in ExpertRows
  int64_t* remote_row;            // [local experts + 1][world]: first staging row at each owner
  int64_t* run_begin;             // [local experts][world] by position: first row of the run, from the expert's first
  int32_t* by_load;               // [local experts], counted from the rank's first, in the order of the schedule
  int64_t* entry_begin;           // [2 * local experts + 1]: see Steps::entry
  int32_t* entry_group;           // [2 * local experts]: size of the entry's first group, where it has as many bands
  planner::RunToSend* runs;       // [local experts][world - 1] in the order of the schedule
  planner::SendCount* sent;       // [local experts * (world - 1) + 1]: of each run, then of those before it
};

struct PlannerLayout {
  int64_t notes = 0, row_sums = 0, band_sums = 0, entry_sums = 0, send_sums = 0, bands = 0, band_begin = 0,
          remote_bands = 0, remote_row = 0, run_begin = 0, by_load = 0, entry_begin = 0, entry_group = 0, runs = 0,
          sent = 0;
  int64_t total = 0;

  // For groups of any size.
  static PlannerLayout make(int32_t world, int32_t experts, int32_t local_experts) {
    PlannerLayout layout;
    const auto place = [&](int64_t count, size_t size) {
      constexpr int64_t kAlignment = 16;
      const int64_t at = layout.total;
      layout.total = align_up(at + count * static_cast<int64_t>(size), kAlignment);
      return at;
    };
    const int64_t local = local_experts, runs = local * (world - 1);
    const auto chunks = [](int64_t elements) {
      const auto count = static_cast<int32_t>(elements);
      return int64_t{planner::Chunks::over(count, count > 0 ? count : 1).count};
    };
    layout.notes = place(1, sizeof(planner::Notes));
    layout.row_sums = place(world * chunks(experts), sizeof(int64_t));
    layout.band_sums = place(chunks(experts), sizeof(int64_t));
    layout.entry_sums = place(chunks(2 * local), sizeof(int64_t));
    layout.send_sums = place(chunks(runs), sizeof(planner::SendCount));
    layout.bands = place(experts, sizeof(int64_t));
    layout.band_begin = place(int64_t{experts} + 1, sizeof(int64_t));
    layout.remote_bands = place(local, sizeof(int64_t));
    layout.remote_row = place((local + 1) * world, sizeof(int64_t));
    layout.run_begin = place(local * world, sizeof(int64_t));
    layout.by_load = place(local, sizeof(int32_t));
    layout.entry_begin = place(2 * local + 1, sizeof(int64_t));
    layout.entry_group = place(2 * local, sizeof(int32_t));
    layout.runs = place(runs, sizeof(planner::RunToSend));
    layout.sent = place(runs + 1, sizeof(planner::SendCount));
    return layout;
  }

  TILEOVERLAP_HD PlannerScratch at(std::byte* base) const {
    const auto longs = [&](int64_t offset) { return reinterpret_cast<int64_t*>(base + offset); };
    const auto ints = [&](int64_t offset) { return reinterpret_cast<int32_t*>(base + offset); };
    return {.notes = reinterpret_cast<planner::Notes*>(base + notes),
            .row_sums = longs(row_sums),
            .band_sums = longs(band_sums),
            .entry_sums = longs(entry_sums),
            .send_sums = reinterpret_cast<planner::SendCount*>(base + send_sums),
            .bands = longs(bands),
            .band_begin = longs(band_begin),
            .remote_bands = longs(remote_bands),
            .remote_row = longs(remote_row),
            .run_begin = longs(run_begin),
            .by_load = ints(by_load),
            .entry_begin = longs(entry_begin),
            .entry_group = ints(entry_group),
            .runs = reinterpret_cast<planner::RunToSend*>(base + runs),
            .sent = reinterpret_cast<planner::SendCount*>(base + sent)};
  }
};

}  // namespace tileoverlap
