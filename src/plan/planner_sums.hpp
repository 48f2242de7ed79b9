#pragma once
// Sums and searches that the threads of the device planner share.

#include <cstdint>

#include "tileoverlap/core/math.hpp"

namespace tileoverlap::planner {

// `count` chunks of `size` elements, the last shorter: about as many chunks as elements in one, at most one a worker.
struct Chunks {
  int32_t count, size;

  TILEOVERLAP_HD static Chunks over(int32_t elements, int32_t workers) {
    int32_t size = 1;
    while (static_cast<int64_t>(size) * size < elements) size *= 2;
    const auto share = static_cast<int32_t>(ceil_div(elements, workers));
    if (size < share) size = share;
    return {elements > size ? static_cast<int32_t>(ceil_div(elements, size)) : 1, size};
  }
};

// Prefix sums over `elements` values, in two steps: each chunk's sum, then each chunk's values with the sums of the
// chunks before. put(i, sum of the values before i) is called for 0 .. elements; it may overwrite value i.
template <class Sum, class ValueOf>
TILEOVERLAP_HD void sum_chunks(int32_t worker, Chunks chunks, int32_t elements, ValueOf value_of, Sum* sums) {
  if (worker >= chunks.count) return;
  const int64_t begin = static_cast<int64_t>(worker) * chunks.size, end = min64(elements, begin + chunks.size);
  Sum sum{};
  for (int64_t i = begin; i < end; ++i) sum = sum + value_of(static_cast<int32_t>(i));
  sums[worker] = sum;
}

template <class Sum, class ValueOf, class Put>
TILEOVERLAP_HD void scan_chunks(int32_t worker, Chunks chunks, int32_t elements, ValueOf value_of, const Sum* sums,
                                Put put) {
  if (worker >= chunks.count) return;
  const int64_t begin = static_cast<int64_t>(worker) * chunks.size, end = min64(elements, begin + chunks.size);
  Sum before{};
  for (int32_t chunk = 0; chunk < worker; ++chunk) before = before + sums[chunk];
  for (int64_t i = begin; i < end; ++i) {
    const Sum value = value_of(static_cast<int32_t>(i));
    put(static_cast<int32_t>(i), before);
    before = before + value;
  }
  if (worker == chunks.count - 1) put(elements, before);
}

// The last i in [0, count) with begin_of(i) <= value; begin_of never decreases and begin_of(0) <= value.
template <class BeginOf>
TILEOVERLAP_HD int32_t last_not_above(int64_t value, int32_t count, BeginOf begin_of) {
  int32_t low = 0, high = count;
  while (high - low > 1) {
    const int32_t middle = low + (high - low) / 2;
    (begin_of(middle) <= value ? low : high) = middle;
  }
  return low;
}

// The rank that hosts `expert`.
TILEOVERLAP_HD inline int32_t host_of(const int32_t* expert_begin, int32_t world, int32_t expert) {
  return last_not_above(expert, world, [=](int32_t rank) { return int64_t{expert_begin[rank]}; });
}

// Arguments are not negative. On the device a 64-bit division costs several of 32 bits.
TILEOVERLAP_HD constexpr int32_t ceil_div32(int32_t a, int32_t b) {
  return static_cast<int32_t>((static_cast<uint32_t>(a) + static_cast<uint32_t>(b) - 1) / static_cast<uint32_t>(b));
}

}  // namespace tileoverlap::planner
