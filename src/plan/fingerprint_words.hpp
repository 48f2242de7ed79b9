#pragma once
// The chain of words behind the fingerprint of a plan, on the device.

#include <cstdint>

#include "tileoverlap/core/api.hpp"

namespace tileoverlap::planner {

// The fingerprint of plan.cpp: `hash` with more words, none negative, added. Not inlined: seven copies of it would not
// fit in the instruction cache.
__attribute__((noinline)) TILEOVERLAP_HD inline uint64_t add_words(uint64_t hash, const int32_t* words, int32_t count) {
  // (hash ^ word) * 0x100000001b3 in halves: only in the lower one does a word wait for the word before it.
  constexpr uint32_t kPrime = 0x1b3;
  auto low = static_cast<uint32_t>(hash), high = static_cast<uint32_t>(hash >> 32);
  const auto add = [&](int32_t word) {
    low ^= static_cast<uint32_t>(word);
    const uint64_t product = static_cast<uint64_t>(low) * kPrime;
    high = high * kPrime + (low << 8) + static_cast<uint32_t>(product >> 32);
    low = static_cast<uint32_t>(product);
  };
  constexpr int32_t kAhead = 16;  // loads in flight
  int32_t begin = 0;
  for (; begin + kAhead <= count; begin += kAhead) {
    int32_t ahead[kAhead];
    for (int32_t i = 0; i < kAhead; ++i) ahead[i] = words[begin + i];
    for (int32_t i = 0; i < kAhead; ++i) add(ahead[i]);
  }
  for (; begin < count; ++begin) add(words[begin]);
  return static_cast<uint64_t>(high) << 32 | low;
}

}  // namespace tileoverlap::planner
