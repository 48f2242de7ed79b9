// Conversion between float32 and the 16-bit row types, against an independent reference in double.

#include "tileoverlap/core/dtype.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "support/messages.hpp"
#include "support/random.hpp"
#include "tileoverlap/core/error.hpp"

namespace tileoverlap {
namespace {

using testing::message_of;
using testing::Random;
using testing::Says;

struct Format {
  int mantissa_bits;
  int least_exponent;  // of normal values; subnormals share it
  int bias;
  double largest;
};
constexpr Format kBfloat{7, -126, 127, 0x1.fep127};
constexpr Format kHalf{10, -14, 15, 65504.0};

template <class T>
constexpr const Format& format_of() {
  return sizeof(T) == 2 && std::is_same_v<T, BFloat16> ? kBfloat : kHalf;
}

// The value of a bit pattern by the definition of the format.
double decode(uint16_t bits, const Format& format) {
  const int exponent_bits = 15 - format.mantissa_bits;
  const int field = (bits >> format.mantissa_bits) & ((1 << exponent_bits) - 1);
  const int fraction = bits & ((1 << format.mantissa_bits) - 1);
  const double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
  if (field == (1 << exponent_bits) - 1) {
    return fraction != 0 ? std::numeric_limits<double>::quiet_NaN() : sign * std::numeric_limits<double>::infinity();
  }
  const double significand = (field == 0 ? 0.0 : 1.0) + std::ldexp(fraction, -format.mantissa_bits);
  return sign * std::ldexp(significand, (field == 0 ? 1 : field) - format.bias);
}

// Rounds to nearest, ties to even, by scaling to units of the last place, which is exact in double.
double round_to(double value, const Format& format) {
  if (std::isnan(value) || std::isinf(value) || value == 0.0) return value;
  const int exponent = std::max(std::ilogb(value), format.least_exponent);
  const double unit = std::ldexp(1.0, exponent - format.mantissa_bits);
  const double rounded = std::copysign(std::nearbyint(std::abs(value) / unit) * unit, value);
  return std::abs(rounded) > format.largest ? std::copysign(std::numeric_limits<double>::infinity(), value) : rounded;
}

::testing::AssertionResult rounds_like_reference(float value, double expected, double got) {
  const bool same =
      std::isnan(expected) ? std::isnan(got) : expected == got && std::signbit(expected) == std::signbit(got);
  if (same) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << std::hexfloat << value << " became " << got << ", not " << expected;
}

template <class T>
::testing::AssertionResult rounds_right(float value) {
  const T rounded = from_float<T>(value);
  return rounds_like_reference(value, round_to(value, format_of<T>()), decode(rounded.bits, format_of<T>()));
}

template <class T>
class HalfType : public ::testing::Test {};
using HalfTypes = ::testing::Types<BFloat16, Float16>;
TYPED_TEST_SUITE(HalfType, HalfTypes);

TYPED_TEST(HalfType, EveryValueReadsAsTheFormatDefinesIt) {
  for (uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const auto pattern = static_cast<uint16_t>(bits);
    const float got = to_float(TypeParam{pattern});
    ASSERT_TRUE(rounds_like_reference(got, decode(pattern, format_of<TypeParam>()), got)) << "bits " << bits;
  }
}

TYPED_TEST(HalfType, EveryValueSurvivesARoundTrip) {
  for (uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const auto pattern = static_cast<uint16_t>(bits);
    const TypeParam back = from_float<TypeParam>(to_float(TypeParam{pattern}));
    if (std::isnan(decode(pattern, format_of<TypeParam>()))) {
      ASSERT_TRUE(std::isnan(decode(back.bits, format_of<TypeParam>()))) << "bits " << bits;
      ASSERT_EQ(back.bits & 0x8000, pattern & 0x8000) << "bits " << bits;
    } else {
      ASSERT_EQ(back.bits, pattern);
    }
  }
}

TYPED_TEST(HalfType, TiesGoToEvenAndTheirNeighboursToTheNearer) {
  for (uint32_t bits = 0; bits < 0x7fff; ++bits) {
    const double low = decode(static_cast<uint16_t>(bits), format_of<TypeParam>());
    const double high = decode(static_cast<uint16_t>(bits + 1), format_of<TypeParam>());
    if (!std::isfinite(low) || !std::isfinite(high)) continue;
    const auto middle = static_cast<float>((low + high) / 2);  // exact: float32 has more bits than both formats
    const float infinity = std::numeric_limits<float>::infinity();
    for (const float value : {middle, std::nextafter(middle, 0.0f), std::nextafter(middle, infinity)}) {
      ASSERT_TRUE(rounds_right<TypeParam>(value));
      ASSERT_TRUE(rounds_right<TypeParam>(-value));
    }
  }
}

TYPED_TEST(HalfType, EndsOfTheRangeRoundLikeTheReference) {
  const auto largest = static_cast<float>(format_of<TypeParam>().largest);
  const auto step = static_cast<float>(std::ldexp(1.0, std::ilogb(largest) - format_of<TypeParam>().mantissa_bits));
  const auto least =
      static_cast<float>(std::ldexp(1.0, format_of<TypeParam>().least_exponent - format_of<TypeParam>().mantissa_bits));
  const float infinity = std::numeric_limits<float>::infinity();
  std::vector<float> values = {0.0f,
                               largest,
                               largest + step / 4,
                               least,
                               least / 2,
                               least / 4,
                               infinity,
                               std::numeric_limits<float>::max(),
                               std::numeric_limits<float>::denorm_min(),
                               std::numeric_limits<float>::min(),
                               std::numeric_limits<float>::quiet_NaN()};
  const float tie = largest + step / 2;  // rounds to infinity, its lower neighbour does not
  for (const float value : {tie, std::nextafter(tie, 0.0f), std::nextafter(least / 2, 1.0f)}) values.push_back(value);
  for (const float value : values) {
    EXPECT_TRUE(rounds_right<TypeParam>(value));
    EXPECT_TRUE(rounds_right<TypeParam>(-value));
  }
  EXPECT_TRUE(std::isinf(to_float(from_float<TypeParam>(tie))));
  EXPECT_EQ(to_float(from_float<TypeParam>(std::nextafter(tie, 0.0f))), largest);
}

TYPED_TEST(HalfType, RandomFloatsRoundLikeTheReference) {
  Random random(1);
  for (int i = 0; i < 300'000; ++i) {
    ASSERT_TRUE(rounds_right<TypeParam>(std::bit_cast<float>(static_cast<uint32_t>(random.bits()))));
  }
}

TEST(BFloat16Rounding, EveryUpperHalfWithEveryKindOfLowerHalf) {
  for (uint32_t upper = 0; upper <= 0xffff; ++upper) {
    for (const uint32_t lower : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      ASSERT_TRUE(rounds_right<BFloat16>(std::bit_cast<float>(upper << 16 | lower))) << upper << ' ' << lower;
    }
  }
}

TEST(BFloat16Rounding, ANaNWithBitsOnlyInTheLowerHalfStaysNaN) {
  EXPECT_TRUE(std::isnan(to_float(from_float<BFloat16>(std::bit_cast<float>(0x7f800001u)))));
  EXPECT_TRUE(std::isnan(to_float(from_float<BFloat16>(std::bit_cast<float>(0xff80ffffu)))));
}

TEST(DTypeNames, NamesParseBackToTheirType) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16, DType::kInt32, DType::kInt64}) {
    EXPECT_EQ(parse_dtype(name(dtype)), dtype);
  }
  EXPECT_STREQ(name(DType::kBFloat16), "bfloat16");
}

TEST(DTypeNames, AnUnknownNameIsQuotedBesideTheKnownOnes) {
  EXPECT_THAT(message_of<InvalidArgument>([] { parse_dtype("float8"); }),
              Says("float8", "float32", "bfloat16", "float16", "int32", "int64"));
}

TEST(DTypeSizes, AreThoseOfTheStorageTypes) {
  EXPECT_EQ(size_of(DType::kFloat32), 4);
  EXPECT_EQ(size_of(DType::kBFloat16), 2);
  EXPECT_EQ(size_of(DType::kFloat16), 2);
  EXPECT_EQ(size_of(DType::kInt32), 4);
  EXPECT_EQ(size_of(DType::kInt64), 8);
  const auto is_bfloat = [](auto zero) { return std::is_same_v<decltype(zero), BFloat16>; };
  const auto is_half = [](auto zero) { return std::is_same_v<decltype(zero), Float16>; };
  const auto is_float = [](auto zero) { return std::is_same_v<decltype(zero), float>; };
  EXPECT_TRUE(with_row_type(DType::kBFloat16, is_bfloat));
  EXPECT_TRUE(with_row_type(DType::kFloat16, is_half));
  EXPECT_TRUE(with_row_type(DType::kFloat32, is_float));
}

}  // namespace
}  // namespace tileoverlap
