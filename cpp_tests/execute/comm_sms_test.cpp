// How many SMs ship, by the size of a call.

#include "execute/comm_sms.hpp"

#include <gtest/gtest.h>

#include <span>

#include "tileoverlap/predict/choose_split.hpp"

namespace tileoverlap {
namespace {

PredictQuery on_h200(int32_t world, int32_t experts) {
  return {.placement = Placement::even(world, experts), .k = 2048, .n = 4096, .gpu = gpu_rates("NVIDIA H200", 90, 132)};
}

TEST(CommSms, WhatTheCallerFixesHoldsForEveryCall) {
  const CommSms fixed(7);
  for (const int64_t copies : {int64_t{0}, int64_t{1}, int64_t{1} << 40}) EXPECT_EQ(fixed.of_call(copies), 7);
  EXPECT_EQ(fixed.of_largest(), 7);
}

TEST(CommSms, AreThoseOfThePredictionForTheSize) {
  const PredictQuery query = on_h200(4, 64);
  constexpr int32_t kRank = 1;
  const CommSms chosen(query, kRank, 16'384);
  for (const int64_t copies : {1, 4, 256, 1024, 16'384}) {
    const RouteCounts counts = even_counts(query.placement, copies);
    EXPECT_EQ(chosen.of_call(copies), choose_split(query, counts, std::span(&kRank, 1)).comm_sms) << copies;
  }
  EXPECT_EQ(chosen.of_call(0), chosen.of_call(1));
  EXPECT_EQ(chosen.of_call(12'000), chosen.of_call(16'384));
  EXPECT_EQ(chosen.of_call(int64_t{1} << 40), chosen.of_largest());
  EXPECT_EQ(chosen.of_largest(), chosen.of_call(16'384));
}

TEST(CommSms, LeaveTheGemmAnSmWhateverTheRankHas) {
  for (const int32_t sms : {2, 3, 8, 132}) {
    PredictQuery query = on_h200(2, 4);
    query.sms = sms;
    const CommSms chosen(query, 0, 100'000);
    for (int64_t copies = 1; copies < 200'000; copies *= 3) {
      EXPECT_GE(chosen.of_call(copies), 1);
      EXPECT_LT(chosen.of_call(copies), sms);
    }
  }
}

TEST(CommSms, RanksWithNothingToDoHaveOneToo) {
  EXPECT_EQ(CommSms(on_h200(3, 0), 1, 0).of_call(0), 1);
  EXPECT_EQ(CommSms(on_h200(3, 2), 2, 1'000).of_call(1'000), 1);  // hosts no expert
  EXPECT_EQ(CommSms(on_h200(1, 8), 0, 1'000).of_call(1'000), 1);  // sends nothing
}

}  // namespace
}  // namespace tileoverlap
