#include "produce/cpu_producer.hpp"

#include <algorithm>

#include "produce/activation.hpp"

namespace tileoverlap {
namespace {

// Part of the output, in rows of this rank and columns of n.
struct TileBox {
  int64_t row_begin, row_count, column_begin, column_count;
};

template <class T>
void compute_tile(const ProduceTask& task, const TileBox& box, int64_t expert_index, ProducerScratch& scratch) {
  Operands<T> operands{.rows = reinterpret_cast<const T*>(task.rows),
                       .row_stride = task.row_stride,
                       .weights = reinterpret_cast<const T*>(task.weights->matrix(expert_index, task.dtype)),
                       .weight_stride = task.weights->row_stride,
                       .k = task.k};
  tile_product(operands, box.row_begin, box.row_count, box.column_begin, box.column_count, true, scratch.first);
  if (task.activation == ExpertKind::kSiluGate) {
    operands.weights += task.n * task.weights->row_stride;  // the up half lies behind the gate half
    scratch.second.rows.swap(scratch.first.rows);
    tile_product(operands, box.row_begin, box.row_count, box.column_begin, box.column_count, false, scratch.second);
    scratch.second.rows.swap(scratch.first.rows);
  }
  T* output = reinterpret_cast<T*>(task.output) + element_offset(box.row_begin, task.n, box.column_begin);
  for (int64_t i = 0; i < box.row_count; ++i) {
    float* values = scratch.first.product.data() + i * scratch.first.product_stride;
    if (task.activation == ExpertKind::kGelu) gelu(values, box.column_count);
    if (task.activation == ExpertKind::kSiluGate) {
      silu_gate(values, scratch.second.product.data() + i * scratch.second.product_stride, box.column_count);
    }
    for (int64_t j = 0; j < box.column_count; ++j) output[i * task.n + j] = from_float<T>(values[j]);
  }
}

}  // namespace

int32_t column_tiles(const PlanData& plan, int64_t n) { return static_cast<int32_t>(ceil_div(n, plan.options.tile_n)); }

void produce_tiles(const ProduceTask& task, int32_t worker, ProducerScratch& scratch) {
  const PlanData& plan = *task.plan;
  const int64_t tile_m = plan.options.tile_m, tile_n = plan.options.tile_n;
  const int32_t tiles_n = column_tiles(plan, task.n);
  const int64_t tiles = static_cast<int64_t>(plan.order.size()) * tiles_n;
  for (int64_t i = task.ticket->fetch_add(1, std::memory_order_relaxed); i < tiles;
       i = task.ticket->fetch_add(1, std::memory_order_relaxed)) {
    const TileCoord tile = tile_at(plan.order.data(), (*task.order)[i], tiles_n);
    const int64_t expert_index = tile.expert - plan.placement.begin(plan.rank);
    const ExpertRows& expert = plan.experts[static_cast<size_t>(expert_index)];
    TileBox box{
        .row_begin = tile.band * tile_m, .row_count = 0, .column_begin = tile.tile_n * tile_n, .column_count = 0};
    box.row_count = std::min(tile_m, expert.row_begin + expert.rows - box.row_begin);
    box.column_count = std::min(tile_n, task.n - box.column_begin);
    task.recorder->span(worker, task.span, tile.band, -1, [&] {
      with_row_type(task.dtype, [&]<class T>(T) { compute_tile<T>(task, box, expert_index, scratch); });
    });
    if (task.flags == nullptr) continue;
    scratch.delay();
    if (tile.band == task.withhold_band) continue;
    // Release: the tile's rows are there before its flag. Pairs with the acquire in consume_segments.
    task.flags->at(tile.band, tile.tile_n).store(task.epoch, std::memory_order_release);
  }
}

}  // namespace tileoverlap
