#include "tileoverlap/produce/tile_table.hpp"

#include <cmath>
#include <string_view>

#include "core/text.hpp"
#include "tileoverlap/core/error.hpp"

namespace tileoverlap {
namespace {

struct Measured {
  std::string_view device;
  int32_t capability;
  int64_t rows;
  int32_t experts;
  int64_t k, n;
  int32_t tile_m, tile_n, group;
};

// Both 16-bit types have the same kernels, and the same is fastest.
constexpr Measured kTable[] = {
#include "produce/tile_table.inc"
};

// Of the depth and the width, half as much hangs as of how many rows there are.
double distance(const TileQuery& query, const Measured& entry) {
  const auto apart = [](int64_t a, int64_t b) {
    return std::abs(std::log2(static_cast<double>(a)) - std::log2(static_cast<double>(b)));
  };
  return apart(query.rows < 1 ? 1 : query.rows, entry.rows) + apart(query.experts, entry.experts) +
         (apart(query.k, entry.k) + apart(query.n, entry.n)) / 2;
}

template <class Accepts>
const Measured* nearest(const TileQuery& query, Accepts accepts) {
  const Measured* best = nullptr;
  for (const Measured& entry : kTable) {
    if (accepts(entry) && (best == nullptr || distance(query, entry) < distance(query, *best))) best = &entry;
  }
  return best;
}

}  // namespace

TileChoice choose_tile(const TileQuery& query) {
  if (query.rows < 0 || query.experts < 1 || query.k < 1 || query.n < 1) {
    throw InvalidArgument(text("a tile is chosen for rows >= 0 and positive experts, k and n, got rows = ", query.rows,
                               ", experts = ", query.experts, ", k = ", query.k, ", n = ", query.n));
  }
  const char* how = "measured on ";
  const Measured* found = nearest(query, [&](const Measured& entry) { return entry.device == query.device; });
  if (found == nullptr) {
    how = "as on ";
    found = nearest(query, [&](const Measured& entry) { return entry.capability == query.capability; });
  }
  if (found == nullptr) return {.source = "rule"};
  return {.tile_m = found->tile_m, .tile_n = found->tile_n, .group = found->group, .source = text(how, found->device)};
}

}  // namespace tileoverlap
