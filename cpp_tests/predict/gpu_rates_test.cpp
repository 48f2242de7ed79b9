// GEMM times of GPUs that were measured and of those that were not.

#include "tileoverlap/predict/gpu_rates.hpp"

#include <gtest/gtest.h>

#include "support/messages.hpp"
#include "tileoverlap/core/error.hpp"
#include "tileoverlap/core/math.hpp"

namespace tileoverlap {
namespace {

using testing::message_of;
using testing::Says;

GpuRates h200() { return gpu_rates("NVIDIA H200", 90, 132); }

GemmShape shape_of(const MeasuredGemm& gemm) {
  return {.bands = gemm.experts * ceil_div(ceil_div(gemm.rows, gemm.experts), gemm.tile_m),
          .experts = gemm.experts,
          .k = gemm.k,
          .n = gemm.n,
          .tile_m = gemm.tile_m,
          .tile_n = gemm.tile_n};
}

TEST(GpuRates, GiveAMeasuredShapeItsTime) {
  const GpuRates rates = h200();
  ASSERT_FALSE(rates.gemms.empty());
  EXPECT_EQ(rates.source, "measured on NVIDIA H200");
  for (const MeasuredGemm& gemm : rates.gemms) {
    EXPECT_NEAR(gemm_us(rates, shape_of(gemm), rates.sms) / (rates.gemm_scale * gemm.us), 1, 2e-3) << gemm.us;
  }
}

TEST(GpuRates, GiveLargerShapesLongerTimes) {
  const GpuRates rates = h200();
  const GemmShape shape{.bands = 128, .experts = 16, .k = 2048, .n = 8192};
  const double time = gemm_us(rates, shape, rates.sms);
  for (const auto& change :
       {+[](GemmShape& s) { s.bands *= 2; }, +[](GemmShape& s) { s.k *= 2; }, +[](GemmShape& s) { s.n *= 2; }}) {
    GemmShape larger = shape;
    change(larger);
    EXPECT_NEAR(gemm_us(rates, larger, rates.sms) / time, 2, 0.3);
  }
}

TEST(GpuRates, LoseLessThanTheirShareOfSms) {
  const GpuRates rates = h200();
  const GemmShape shape{.bands = 1280, .experts = 16, .k = 2048, .n = 8192};
  const double all = gemm_us(rates, shape, 132), part = gemm_us(rates, shape, 120);
  EXPECT_GT(part, all);
  EXPECT_LT(part, all * 132 / 120);
}

TEST(GpuRates, OfAGemmThatReadsWeightsMostlyFewerSmsCostNothing) {
  const GpuRates rates = h200();
  const GemmShape decode{.bands = 48, .experts = 48, .k = 2048, .n = 7168};
  EXPECT_DOUBLE_EQ(gemm_us(rates, decode, 132), gemm_us(rates, decode, 124));
}

TEST(GpuRates, OfAnUnknownGpuAreThoseOfTheNearestBySms) {
  const GpuRates half = gpu_rates("Some Hopper", 90, 66);
  EXPECT_EQ(half.source, "as on NVIDIA H200, by SMs");
  EXPECT_EQ(half.device, "Some Hopper");
  const GemmShape shape{.bands = 1280, .experts = 16, .k = 2048, .n = 8192};
  EXPECT_NEAR(gemm_us(half, shape, 66) / gemm_us(h200(), shape, 132), 2, 0.02);  // waves are whole
  EXPECT_EQ(gpu_rates("Some Ampere", 80, 108).source, "as on NVIDIA H200, by SMs");
}

TEST(GpuRates, OfNoRowsNothing) { EXPECT_EQ(gemm_us(h200(), {.bands = 0, .experts = 0, .k = 8, .n = 8}, 132), 0); }

TEST(GpuRates, RefuseSmsThatAreNotThere) {
  const auto refusal = [](int32_t sms) {
    return message_of<InvalidArgument>([&] { gemm_us(h200(), {.bands = 1, .experts = 1, .k = 8, .n = 8}, sms); });
  };
  EXPECT_THAT(refusal(0), Says("1..132", "got 0"));
  EXPECT_THAT(refusal(133), Says("1..132", "got 133"));
  EXPECT_THAT(message_of<InvalidArgument>([] { gpu_rates("NVIDIA H200", 90, 0); }), Says("got 0"));
}

}  // namespace
}  // namespace tileoverlap
