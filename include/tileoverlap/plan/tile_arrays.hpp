#pragma once
// The plan in the paper's terms: destination rank, remote offset and valid rows by tile id. A view for printing,
// export and comparison; nothing is run from it.

#include <cstdint>
#include <vector>

#include "tileoverlap/plan/plan.hpp"

namespace tileoverlap {

// Columns of equal length, one entry for each (tile, destination), in schedule order. In the owner-aligned layout a
// remote tile has one destination, as in the paper; in the compact layout it may have several.
struct TileArrays {
  std::vector<int64_t> tile;           // band * tiles_n + tile_n
  std::vector<int32_t> expert;         // global id
  std::vector<int32_t> dest_rank;      // the rows' owner; this rank for rows that are not sent
  std::vector<int64_t> row_begin;      // first valid row, in this rank's output
  std::vector<int64_t> valid_rows;     // rows of the tile that belong to dest_rank
  std::vector<int64_t> remote_offset;  // element offset in dest_rank's staging; -1 for rows that are not sent
};

TILEOVERLAP_API TileArrays tile_arrays(const Plan& plan);

}  // namespace tileoverlap
