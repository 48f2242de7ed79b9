#pragma once
// Random inputs that are the same everywhere: the standard's distributions differ between libraries.

#include <cstdint>

namespace tileoverlap::testing {

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15u + 1) {}

  uint64_t bits() {  // splitmix64
    uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  // Both ends can come.
  int64_t between(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(bits() % static_cast<uint64_t>(high - low + 1));
  }
  int32_t between32(int32_t low, int32_t high) { return static_cast<int32_t>(between(low, high)); }
  bool chance(int32_t percent) { return between(1, 100) <= percent; }
  float unit() { return static_cast<float>(between(-1000, 1000)) / 1000.0f; }  // -1 .. 1

 private:
  uint64_t state_;
};

}  // namespace tileoverlap::testing
