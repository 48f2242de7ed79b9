#pragma once
// One rank's plan for one call: rows, tile order, segments and expected arrivals, from the counts matrix alone.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tileoverlap/plan/layout.hpp"
#include "tileoverlap/plan/options.hpp"
#include "tileoverlap/plan/schedule.hpp"
#include "tileoverlap/plan/segments.hpp"
#include "tileoverlap/routing/counts.hpp"
#include "tileoverlap/routing/placement.hpp"

namespace tileoverlap {

struct ExpertRows {
  int32_t expert;        // global id
  int32_t first_band;    // the expert starts at row first_band * tile_m
  int32_t bands;         // bands that hold a row of the GEMM's work
  int32_t remote_bands;  // the first of them, those that hold a remote row
  int64_t row_begin;
  int64_t rows;        // rows of GEMM work: copies, and owner-aligned padding between runs
  int64_t valid_rows;  // copies
};

// The copies of one owner inside one expert.
struct Run {
  int32_t expert;  // global id
  int32_t owner;
  int64_t row_begin;  // on the rank that hosts the expert
  int64_t row_count;
  int64_t remote_row;  // in the owner's staging; a local run is not sent, its owner reads the output rows instead
};

struct PlanData {
  Placement placement;
  int32_t rank;
  int32_t n;  // width of a returned row, elements
  PlanOptions options;

  // As the rank that hosts experts:
  int64_t rows = 0;        // rows of the GEMM's buffers: bands * tile_m
  int64_t gemm_rows = 0;   // rows of GEMM work: copies and owner-aligned padding
  int64_t valid_rows = 0;  // copies
  int32_t tiles_n = 0;     // column tiles of a band
  std::vector<ExpertRows> experts = {};
  std::vector<Run> runs = {};                 // [experts on this rank][world], in row order
  std::vector<ScheduledBand> order = {};      // every band once
  std::vector<Segment> segments = {};         // in the order in which their last band is scheduled
  std::vector<int64_t> dispatched_rows = {};  // [world] copies that each owner sends to this rank's experts

  // As the rank that owns tokens:
  int64_t staging_rows = 0;                 // copies of this rank, those for its own experts included
  std::vector<int64_t> staging_row = {};    // [experts + 1] first staging row of each expert's copies
  std::vector<int64_t> dispatch_row = {};   // [experts] first row of this rank's run on the rank that hosts the expert
  std::vector<int64_t> returned_rows = {};  // [world] rows that each other rank returns; 0 for this rank

  // Equal on ranks whose plans belong together: made from the same counts, placement, width, tile and layout.
  uint64_t fingerprint = 0;

  // Of all ranks, so that every rank refuses a call that one of them cannot hold:
  std::vector<int64_t> copies_of = {};  // [world] copies of each owner
};

// Immutable; copies share the data. Source: design sections 3 to 5 of docs/design.md; paper Algorithm 1.
class TILEOVERLAP_API Plan {
 public:
  explicit Plan(std::shared_ptr<const PlanData> data) : data_(std::move(data)) {}
  const PlanData& operator*() const { return *data_; }
  const PlanData* operator->() const { return data_.get(); }

  int32_t world() const { return data_->placement.world(); }
  int32_t bands() const { return static_cast<int32_t>(data_->order.size()); }
  int64_t tiles() const { return static_cast<int64_t>(bands()) * data_->tiles_n; }
  const Run& run(int32_t expert, int32_t owner) const;  // `expert` must live on this rank
  std::string repr() const;

 private:
  std::shared_ptr<const PlanData> data_;
};

// Plans the return path of `rank`.
//   counts  the matrix of `placement`'s world and experts, the same on all ranks
//   n       elements of a returned row (hidden size), > 0
// Cost: O(bands + world * experts), independent of the number of copies. Errors: InvalidArgument.
TILEOVERLAP_API Plan make_plan(const Placement& placement, int32_t rank, const RouteCounts& counts, int64_t n,
                               const PlanOptions& options = {});

}  // namespace tileoverlap
