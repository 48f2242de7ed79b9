// How many SMs ship: the search against looking at every number, and what is expected of routing that is not known.

#include "tileoverlap/predict/choose_split.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <vector>

#include "support/messages.hpp"
#include "tileoverlap/core/error.hpp"

namespace tileoverlap {
namespace {

using testing::message_of;
using testing::Says;

PredictQuery on_h200(int32_t world, int32_t experts, int64_t k, int64_t n) {
  return {.placement = Placement::even(world, experts),
          .k = k,
          .n = n,
          .gpu = gpu_rates("NVIDIA H200", 90, 132),
          .link = {}};
}

TEST(ChooseSplit, IsAsGoodAsTheBestOfAll) {
  struct Case {
    int32_t world, experts;
    int64_t copies, k, n;
  };
  for (const Case& it : {Case{4, 64, 16384, 2048, 8192},
                         {4, 256, 16384, 2048, 4096},
                         {8, 256, 65536, 2048, 7168},
                         {8, 128, 1024, 768, 2048},
                         {8, 8, 256, 14336, 4096},
                         {4, 64, 16384, 512, 4096}}) {
    const PredictQuery query = on_h200(it.world, it.experts, it.k, it.n);
    const RouteCounts counts = even_counts(query.placement, it.copies);
    const std::array<int32_t, 1> rank = {0};
    std::vector<int32_t> all(132 / 5);
    std::iota(all.begin(), all.end(), 1);
    double best = 1e300;
    for (const Prediction& split : predict(query, counts, all, rank)) best = std::min(best, split.overlapped_us);
    const SplitChoice choice = choose_split(query, counts, rank);
    EXPECT_LE(choice.overlapped_us, 1.005 * best) << it.copies << " x " << it.n;
    EXPECT_GE(choice.overlapped_us, best);
  }
}

TEST(ChooseSplit, GivesTheReturnWhatItNeeds) {
  const std::array<int32_t, 1> rank = {0};
  const auto chosen = [&](int64_t k) {
    const PredictQuery query = on_h200(4, 64, k, 8192);
    return choose_split(query, even_counts(query.placement, 16384), rank).comm_sms;
  };
  // The deeper the GEMM, the longer it takes to make a row, and the fewer SMs keep up with it.
  EXPECT_GT(chosen(1024), chosen(2048));
  EXPECT_GT(chosen(2048), chosen(8192));
}

TEST(ChooseSplit, WithoutRowsTakesOneSm) {
  const PredictQuery query = on_h200(2, 4, 512, 512);
  EXPECT_EQ(choose_split(query, even_counts(query.placement, 0)).comm_sms, 1);
}

TEST(ChooseSplit, LeavesMostSmsToTheGemm) {
  // One expert of 256 rows: its 64 tiles leave half of the SMs without work, which was never measured.
  const PredictQuery query = on_h200(8, 8, 14336, 4096);
  const std::array<int32_t, 1> rank = {0};
  EXPECT_LE(choose_split(query, even_counts(query.placement, 256), rank).comm_sms, 26);
}

TEST(ChooseSplit, NeedsTwoSms) {
  PredictQuery query = on_h200(2, 4, 512, 512);
  query.sms = 1;
  const RouteCounts counts = even_counts(query.placement, 8);
  EXPECT_THAT(message_of<InvalidArgument>([&] { choose_split(query, counts); }), Says("it has 1"));
  query.sms = 2;
  EXPECT_EQ(choose_split(query, counts).comm_sms, 1);
}

TEST(EvenCounts, SpreadCopiesOverExpertsAndRanks) {
  const Placement placement = Placement::even(3, 7);
  for (const int64_t copies : {0, 1, 6, 7, 8, 1000}) {
    const RouteCounts counts = even_counts(placement, copies);
    std::vector<int64_t> of_expert(7);
    for (int32_t owner = 0; owner < 3; ++owner) {
      EXPECT_EQ(counts.copies_of(owner), copies);
      for (int32_t expert = 0; expert < 7; ++expert) {
        EXPECT_LE(std::abs(counts.at(owner, expert) - copies / 7), 1);
        of_expert[static_cast<size_t>(expert)] += counts.at(owner, expert);
      }
    }
    const auto [least, most] = std::minmax_element(of_expert.begin(), of_expert.end());
    EXPECT_LE(*most - *least, 1) << copies;
  }
}

TEST(EvenCounts, RefuseCopiesWithoutExperts) {
  const auto refusal = [](int32_t experts, int64_t copies) {
    return message_of<InvalidArgument>([&] { even_counts(Placement::even(2, experts), copies); });
  };
  EXPECT_THAT(refusal(0, 3), Says("got 3 for 0 experts"));
  EXPECT_THAT(refusal(4, -1), Says("got -1"));
  EXPECT_EQ(even_counts(Placement::even(2, 0), 0).experts(), 0);
}

}  // namespace
}  // namespace tileoverlap
