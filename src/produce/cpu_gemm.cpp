#include "produce/cpu_gemm.hpp"

#include <algorithm>

#include "tileoverlap/core/math.hpp"

namespace tileoverlap {
namespace {

constexpr int64_t kPanel = 16;  // columns side by side in vector registers
constexpr int64_t kBlock = 4;   // rows that share a loaded panel row

// Lanes of one panel row. The compiler lowers it to whatever vectors the machine has.
typedef float Lanes __attribute__((vector_size(kPanel * sizeof(float)), aligned(sizeof(float))));

template <int64_t Rows>
__attribute__((always_inline)) inline void block_product(const float* rows, int64_t k_count, const float* panel,
                                                         float* product, int64_t product_stride) {
  Lanes sums[Rows] = {};
  for (int64_t k = 0; k < k_count; ++k) {
    const Lanes weights = *reinterpret_cast<const Lanes*>(panel + k * kPanel);
    for (int64_t i = 0; i < Rows; ++i) sums[i] += rows[i * k_count + k] * weights;
  }
  for (int64_t i = 0; i < Rows; ++i) *reinterpret_cast<Lanes*>(product + i * product_stride) = sums[i];
}

// One copy a vector width, picked when the library is loaded. Multiplication and addition stay apart
// (-ffp-contract=off), so all copies give the same bits. Sanitizers start too late for that kind of dispatch.
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
__attribute__((target_clones("avx512f", "avx2", "default")))
#endif
void panel_product(const float* rows, int64_t row_count, int64_t k_count, const float* panel, float* product,
                   int64_t product_stride) {
  int64_t i = 0;
  for (; i + kBlock <= row_count; i += kBlock) {
    block_product<kBlock>(rows + i * k_count, k_count, panel, product + i * product_stride, product_stride);
  }
  for (; i < row_count; ++i) {
    block_product<1>(rows + i * k_count, k_count, panel, product + i * product_stride, product_stride);
  }
}

template <class T>
void load_rows_as_float(const Operands<T>& operands, int64_t row_begin, int64_t row_count, float* rows) {
  for (int64_t i = 0; i < row_count; ++i) {
    const T* source = operands.rows + (row_begin + i) * operands.row_stride;
    for (int64_t k = 0; k < operands.k; ++k) rows[i * operands.k + k] = to_float(source[k]);
  }
}

// Transposes `columns` weight rows into the panel; the columns that are missing become zero.
template <class T>
void load_panel(const Operands<T>& operands, int64_t column_begin, int64_t columns, float* panel) {
  if (columns < kPanel) std::fill_n(panel, operands.k * kPanel, 0.0f);
  for (int64_t j = 0; j < columns; ++j) {
    const T* source = operands.weights + (column_begin + j) * operands.weight_stride;
    for (int64_t k = 0; k < operands.k; ++k) panel[k * kPanel + j] = to_float(source[k]);
  }
}

}  // namespace

GemmScratch::GemmScratch(int64_t tile_m, int64_t tile_n, int64_t k)
    : rows(static_cast<size_t>(tile_m * k)),
      panel(static_cast<size_t>(k * kPanel)),
      product(static_cast<size_t>(tile_m * align_up(tile_n, kPanel))),
      product_stride(align_up(tile_n, kPanel)) {}

double GemmScratch::bytes(int64_t tile_m, int64_t tile_n, int64_t k) {
  const auto rows = static_cast<double>(tile_m), depth = static_cast<double>(k);
  return sizeof(float) * (rows * depth + depth * kPanel + rows * static_cast<double>(align_up(tile_n, kPanel)));
}

template <class T>
void tile_product(const Operands<T>& operands, int64_t row_begin, int64_t row_count, int64_t column_begin,
                  int64_t column_count, bool load_rows, GemmScratch& scratch) {
  if (load_rows) load_rows_as_float(operands, row_begin, row_count, scratch.rows.data());
  for (int64_t j = 0; j < column_count; j += kPanel) {
    load_panel(operands, column_begin + j, std::min(kPanel, column_count - j), scratch.panel.data());
    panel_product(scratch.rows.data(), row_count, operands.k, scratch.panel.data(), scratch.product.data() + j,
                  scratch.product_stride);
  }
}

template void tile_product(const Operands<float>&, int64_t, int64_t, int64_t, int64_t, bool, GemmScratch&);
template void tile_product(const Operands<BFloat16>&, int64_t, int64_t, int64_t, int64_t, bool, GemmScratch&);
template void tile_product(const Operands<Float16>&, int64_t, int64_t, int64_t, int64_t, bool, GemmScratch&);

}  // namespace tileoverlap
