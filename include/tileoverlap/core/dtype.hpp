#pragma once
// Element types of rows and ids, and their conversion to and from float32.

#include <bit>
#include <cstdint>
#include <string>

#include "tileoverlap/core/api.hpp"

namespace tileoverlap {

enum class DType : int32_t { kFloat32, kBFloat16, kFloat16, kInt32, kInt64 };

TILEOVERLAP_API const char* name(DType dtype);  // "float32", "bfloat16", ...
TILEOVERLAP_API DType parse_dtype(const std::string& text);

constexpr int64_t size_of(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
    case DType::kInt32:
      return 4;
    case DType::kInt64:
      return 8;
    default:
      return 2;
  }
}

// Storage types; arithmetic is done in float32. Rounding is to nearest, ties to even; NaN stays NaN.
struct BFloat16 {
  uint16_t bits;
};
struct Float16 {
  uint16_t bits;
};

inline float to_float(float value) { return value; }

inline float to_float(BFloat16 value) { return std::bit_cast<float>(static_cast<uint32_t>(value.bits) << 16); }

inline float to_float(Float16 value) {
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x8000u) << 16;
  const uint32_t magnitude = static_cast<uint32_t>(value.bits & 0x7fffu) << 13;
  // Shift the exponent field into place and rescale by 2^112: exact for normal and subnormal values.
  const float scaled = std::bit_cast<float>(magnitude) * std::bit_cast<float>(0x77800000u);
  const uint32_t finite = std::bit_cast<uint32_t>(scaled);
  const uint32_t special = 0x7f800000u | magnitude;  // infinity and NaN
  return std::bit_cast<float>(sign | (magnitude >= 0x0f800000u ? special : finite));
}

template <class T>
T from_float(float value);

template <>
inline float from_float<float>(float value) {
  return value;
}

template <>
inline BFloat16 from_float<BFloat16>(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return {static_cast<uint16_t>((bits >> 16) | 0x0040u)};
  return {static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}

template <>
inline Float16 from_float<Float16>(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return {static_cast<uint16_t>(sign | 0x7e00u)};
  if (magnitude >= 0x477ff000u) return {static_cast<uint16_t>(sign | 0x7c00u)};  // 65520 and more round to infinity
  if (magnitude < 0x38800000u) {
    // Subnormal: adding 0.5 puts the result's last bit at the sum's last bit, so the sum rounds for us.
    const uint32_t sum = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f);
    return {static_cast<uint16_t>(sign | (sum - 0x3f000000u))};
  }
  const uint32_t rounded = magnitude + 0x0fffu + ((magnitude >> 13) & 1u);
  return {static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13))};
}

// Calls `function` with a value of the storage type that `dtype` names (rows only: not the integer types).
template <class Function>
auto with_row_type(DType dtype, Function&& function) {
  switch (dtype) {
    case DType::kBFloat16:
      return function(BFloat16{});
    case DType::kFloat16:
      return function(Float16{});
    default:
      return function(float{});
  }
}

}  // namespace tileoverlap
