#pragma once
// How the schedule groups bands, and which local bands it holds back: shared by the planners of host and device.

#include <cstdint>

#include "tileoverlap/core/api.hpp"
#include "tileoverlap/core/math.hpp"

namespace tileoverlap {

// The schedule holds an expert's local bands back until all remote ones are done, so that the last rows are sent
// meanwhile. By themselves they read the expert's weights once more, which a single band is not worth (32 experts of 3
// remote bands and 1 local: 12 % slower): it stays behind the remote bands of its expert.
inline constexpr int64_t kWorthHolding = 2;

// But single bands are held back, too, from the end of the schedule, as far as there would be less than a group of
// bands, or than the last remote ones, to compute while the last rows are sent: of the experts from this place on.
//
// Places are in the order of the schedule, experts without remote bands last. remote_bands(place), local_bands(place).
template <class RemoteBands, class LocalBands>
TILEOVERLAP_HD int32_t first_split_place(int32_t places, int32_t group, RemoteBands remote_bands,
                                         LocalBands local_bands) {
  int64_t held = 0, wanted = 0;
  for (int32_t place = 0; place < places; ++place) {
    if (local_bands(place) >= kWorthHolding) held += local_bands(place);
    if (remote_bands(place) > 0) wanted = min64(group, remote_bands(place));
  }
  int32_t first = places;
  for (; first > 0 && held < wanted; --first) {
    if (local_bands(first - 1) < kWorthHolding) held += local_bands(first - 1);
  }
  return first;
}

// Of the expert's `local` bands at `place`.
TILEOVERLAP_HD inline int64_t held_bands(int32_t place, int32_t first_split, int64_t local) {
  return place >= first_split || local >= kWorthHolding ? local : 0;
}

struct BandGroup {
  int64_t begin;
  int32_t size;
};

// The group of the band at `position` of `bands` consecutive bands of one expert. The groups double from `first` to
// `largest`; the bands behind are cut into as few groups as that allows, all of the same size but for one band.
TILEOVERLAP_HD inline BandGroup group_at(int64_t position, int64_t bands, int32_t first, int32_t largest) {
  int64_t begin = 0;
  for (int32_t size = first; size < largest; size = static_cast<int32_t>(min64(int64_t{size} * 2, largest))) {
    const int64_t here = min64(size, bands - begin);
    if (position < begin + here) return {begin, static_cast<int32_t>(here)};
    begin += here;
  }
  const int64_t rest = bands - begin, groups = ceil_div(rest, largest);
  const int64_t size = rest / groups, longer = rest % groups, in_rest = position - begin;
  const int64_t short_begin = longer * (size + 1);
  if (in_rest < short_begin) {
    return {begin + in_rest / (size + 1) * (size + 1), static_cast<int32_t>(size + 1)};
  }
  return {begin + short_begin + (in_rest - short_begin) / size * size, static_cast<int32_t>(size)};
}

}  // namespace tileoverlap
