#pragma once
// The order in which a rank's output tiles are computed.
//
// Experts with more bands that hold a remote row come first, ties by expert id; purely local bands come at the end,
// while the last rows leave, but for some single ones (plan/band_groups.hpp). Up to `group` bands of one expert are
// interleaved (tile n of all of them, then tile n + 1), so that a tile of weights is read once for the group. The first
// groups are 1, 2, 4, ... bands: the first segment leaves after one band.

#include <cstdint>

#include "tileoverlap/core/api.hpp"
#include "tileoverlap/core/math.hpp"

namespace tileoverlap {

// One entry a band, in schedule order. 16 bytes: one vector load on the device.
struct alignas(16) ScheduledBand {
  int32_t band;         // rows [band * tile_m, (band + 1) * tile_m)
  int32_t expert;       // global id
  int32_t group_begin;  // position in this list of the group's first band
  int32_t group_size;
};

struct TileCoord {
  int32_t band;
  int32_t tile_n;
  int32_t expert;
};

// Tile `task` of the schedule, whose entry is order[position] with position = task / tiles_n: what a warp needs is one
// load, since the bands of a group are consecutive bands of one expert.
TILEOVERLAP_HD inline TileCoord tile_in_group(const ScheduledBand& entry, int32_t position, uint32_t in_group) {
  const auto size = static_cast<uint32_t>(entry.group_size);
  const int32_t first_band = entry.band - (position - entry.group_begin);
  return {first_band + static_cast<int32_t>(in_group % size), static_cast<int32_t>(in_group / size), entry.expert};
}

// Tile `task` (0 .. bands * tiles_n - 1) of the schedule: a pure function of the position, so that every warp can
// ask for itself and no work list is stored.
TILEOVERLAP_HD inline TileCoord tile_at(const ScheduledBand* order, int64_t task, int32_t tiles_n) {
  const auto position = static_cast<int32_t>(task / tiles_n);
  const ScheduledBand entry = order[position];
  return tile_in_group(entry, position,
                       static_cast<uint32_t>(task - static_cast<int64_t>(entry.group_begin) * tiles_n));
}

}  // namespace tileoverlap
