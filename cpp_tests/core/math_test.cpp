// Offsets at and past the limits of 32 bits.

#include "tileoverlap/core/math.hpp"

#include <gtest/gtest.h>

#include <limits>

namespace tileoverlap {
namespace {

TEST(Math, CeilDivRoundsUpAndAlignUpReachesTheMultiple) {
  EXPECT_EQ(ceil_div(0, 128), 0);
  EXPECT_EQ(ceil_div(1, 128), 1);
  EXPECT_EQ(ceil_div(128, 128), 1);
  EXPECT_EQ(ceil_div(129, 128), 2);
  EXPECT_EQ(align_up(0, 4), 0);
  EXPECT_EQ(align_up(5, 4), 8);
  EXPECT_EQ(align_up(8, 4), 8);
  EXPECT_EQ(align_up(int64_t{1} << 40, 3), 1099511627778);
}

TEST(ElementOffset, IsExactOnBothSidesOfTwoToThe31) {
  EXPECT_EQ(element_offset(299593, 7168), 2147482624);
  EXPECT_EQ(element_offset(299594, 7168), 2147489792);
  EXPECT_EQ(element_offset(149796, 7168) * 2, 2147475456);  // bytes of bfloat16 pass 2^31 at half the rows
  EXPECT_EQ(element_offset(149797, 7168) * 2, 2147489792);
}

TEST(ElementOffset, AddsTheColumnIn64Bits) {
  EXPECT_EQ(element_offset(524287, 4096), 2147479552);        // last of 524288 rows
  EXPECT_EQ(element_offset(524287, 4096, 4096), 2147483648);  // one past the buffer's end
}

TEST(ElementOffset, IsExactPastTwoToThe32) {
  EXPECT_EQ(element_offset(600000, 7168), 4300800000);
  EXPECT_GT(element_offset(600000, 7168), int64_t{std::numeric_limits<uint32_t>::max()});
}

}  // namespace
}  // namespace tileoverlap
