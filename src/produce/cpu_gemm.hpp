#pragma once
// One output tile's product on the CPU, in float32.

#include <cstdint>
#include <vector>

#include "tileoverlap/core/dtype.hpp"

namespace tileoverlap {

// Row-major operands of one expert: rows [?, k] and weights [n, k], strides in elements.
template <class T>
struct Operands {
  const T* rows;
  int64_t row_stride;
  const T* weights;
  int64_t weight_stride;
  int64_t k;
};

// A worker's buffers for one tile, made at prepare.
struct GemmScratch {
  GemmScratch(int64_t tile_m, int64_t tile_n, int64_t k);
  // What the constructor takes; a double, since sizes below 2^31 multiply to more than 2^63 bytes.
  static double bytes(int64_t tile_m, int64_t tile_n, int64_t k);
  std::vector<float> rows;     // [tile_m, k], converted
  std::vector<float> panel;    // [k, kPanel], kPanel weight rows transposed
  std::vector<float> product;  // [tile_m, product_stride]
  int64_t product_stride;
};

// scratch.product[i][j] = sum over k of rows[row_begin + i][k] * weights[column_begin + j][k], for i < row_count and
// j < column_count. Each sum is taken in float32 with k ascending, so it depends on its row and column alone: not on
// the tile's size, position or neighbours, nor on the machine's vector width. `load_rows` false: scratch.rows still
// holds these rows from the call before.
template <class T>
void tile_product(const Operands<T>& operands, int64_t row_begin, int64_t row_count, int64_t column_begin,
                  int64_t column_count, bool load_rows, GemmScratch& scratch);

}  // namespace tileoverlap
