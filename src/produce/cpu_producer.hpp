#pragma once
// The experts' GEMMs on CPU threads: tiles drawn from a ticket, one flag a finished tile.

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "execute/disorder.hpp"
#include "execute/recorder.hpp"
#include "produce/cpu_gemm.hpp"
#include "produce/weights_view.hpp"
#include "tileoverlap/plan/plan.hpp"

namespace tileoverlap {

// Tile flags of a rank: flag(band, tile_n) is the epoch in which the tile was last finished. A flag of another epoch
// never counts, so nothing is ever reset. Sized for the session's capacity, not for a call.
class TileFlags {
 public:
  TileFlags(int64_t bands, int32_t tiles_n)
      : tiles_n_(tiles_n), flags_(new std::atomic<uint64_t>[static_cast<size_t>(bands * tiles_n)]()) {}
  std::atomic<uint64_t>& at(int32_t band, int32_t tile_n) const {
    return flags_[static_cast<size_t>(int64_t{band} * tiles_n_ + tile_n)];
  }
  int32_t tiles_n() const { return tiles_n_; }

 private:
  int32_t tiles_n_;
  std::unique_ptr<std::atomic<uint64_t>[]> flags_;
};

// What a worker of the producer keeps to itself.
struct ProducerScratch {
  ProducerScratch(int64_t tile_m, int64_t tile_n, int64_t k, bool gated, Delay delays)
      : first(tile_m, tile_n, k),
        second(gated ? GemmScratch(tile_m, tile_n, k) : GemmScratch(0, 0, 0)),
        delay(delays) {}
  static double bytes(int64_t tile_m, int64_t tile_n, int64_t k, bool gated) {
    return (gated ? 2 : 1) * GemmScratch::bytes(tile_m, tile_n, k);
  }
  GemmScratch first, second;  // `second` holds the up half of a SiLU gate
  Delay delay;
};

// One expert GEMM over the plan's rows. Aggregate; borrows everything.
struct ProduceTask {
  const PlanData* plan;
  DType dtype;
  const std::byte* rows;       // [plan->rows, k]
  int64_t row_stride;          // elements
  const WeightsView* weights;  // [n or 2 n, k] an expert
  int64_t k, n;
  ExpertKind activation = ExpertKind::kSingle;  // kSingle: none
  std::byte* output;                            // [plan->rows, n], contiguous
  const TileFlags* flags = nullptr;             // null: nobody waits for single tiles
  uint64_t epoch = 0;
  int32_t withhold_band = -1;  // computed, never published
  const TaskOrder* order;      // of tiles
  std::atomic<int64_t>* ticket;
  Recorder* recorder;
  Span span = Span::kTile;
};

// Column tiles of a band in a GEMM of width n.
int32_t column_tiles(const PlanData& plan, int64_t n);

// Draws tiles until none is left. Never waits for anybody. Called by each producer thread with its own scratch.
void produce_tiles(const ProduceTask& task, int32_t worker, ProducerScratch& scratch);

}  // namespace tileoverlap
