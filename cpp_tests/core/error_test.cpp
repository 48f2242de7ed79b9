// What an expired wait says: who waited for whom, where, and how far it had come.

#include "tileoverlap/core/error.hpp"

#include <gtest/gtest.h>

#include "support/messages.hpp"

namespace tileoverlap {
namespace {

using testing::has_words;
using testing::Says;

TEST(WaitRecordText, ABandNamesExpertBandTileSegmentAndBothEpochs) {
  const WaitRecord record{.what = WaitFor::kBand,
                          .rank = 1,
                          .peer = 1,
                          .expert = 17,
                          .band = 23,
                          .tile = 5,
                          .segment = 31,
                          .epoch = 42,
                          .seen = 41,
                          .expected = 42,
                          .timeout_ns = 250'000'000};
  EXPECT_THAT(describe(record), Says("rank 1", "consume", "epoch 42", "expert 17", "band 23", "tile 5", "segment 31",
                                     "saw epoch 41", "0.25 s"));
}

TEST(WaitRecordText, AnArrivalNamesThePeerAndTheBytes) {
  const WaitRecord record{.what = WaitFor::kArrival,
                          .rank = 0,
                          .peer = 2,
                          .epoch = 3,
                          .seen = 4096,
                          .expected = 88080384,
                          .timeout_ns = 2'000'000'000};
  EXPECT_THAT(describe(record), Says("rank 0", "reduce", "epoch 3", "rank 2", "4096", "88080384", "bytes", "2 s"));
}

TEST(WaitRecordText, IndicesThatDoNotApplyAreLeftOut) {
  const std::string said = describe({.what = WaitFor::kCounts, .rank = 0, .peer = 3, .epoch = 1, .timeout_ns = 1});
  for (const char* word : {"expert", "band", "tile", "segment", "-1"}) EXPECT_FALSE(has_words(said, word)) << said;
}

TEST(WaitRecordText, NamesTheStageByItsFolder) {
  EXPECT_STREQ(stage_of(WaitFor::kCounts), "routing");
  EXPECT_STREQ(stage_of(WaitFor::kMemory), "transport");
  EXPECT_STREQ(stage_of(WaitFor::kDispatchCredit), "dispatch");
  EXPECT_STREQ(stage_of(WaitFor::kDispatchArrival), "dispatch");
  EXPECT_STREQ(stage_of(WaitFor::kBand), "consume");
  EXPECT_STREQ(stage_of(WaitFor::kCredit), "consume");
  EXPECT_STREQ(stage_of(WaitFor::kArrival), "reduce");
  EXPECT_STREQ(stage_of(WaitFor::kPeerClosed), "execute");
  EXPECT_STREQ(stage_of(WaitFor::kSamePlan), "execute");
  EXPECT_STREQ(stage_of(WaitFor::kError), "execute");
  EXPECT_STREQ(stage_of(WaitFor::kConnection), "transport");
  EXPECT_STREQ(stage_of(WaitFor::kHostMessage), "transport");
}

TEST(WaitRecordText, EveryKindOfWaitNamesBothRanks) {
  for (const WaitFor what : {WaitFor::kCounts, WaitFor::kMemory, WaitFor::kDispatchCredit, WaitFor::kDispatchArrival,
                             WaitFor::kBand, WaitFor::kCredit, WaitFor::kArrival, WaitFor::kPeerClosed,
                             WaitFor::kSamePlan, WaitFor::kConnection, WaitFor::kHostMessage}) {
    const std::string said = describe({.what = what, .rank = 6, .peer = 7, .epoch = 9, .timeout_ns = 1'000'000'000});
    EXPECT_THAT(said, Says("rank 6", "rank 7", "epoch 9", stage_of(what)));
  }
}

TEST(WaitRecordText, ThatDidNotWaitNamesNoTime) {
  for (const WaitFor what : {WaitFor::kPeerClosed, WaitFor::kSamePlan, WaitFor::kError}) {
    const std::string said = describe({.what = what, .rank = 6, .peer = 7, .epoch = 9, .timeout_ns = 120'000'000'000});
    EXPECT_THAT(said, Says("rank 6", "epoch 9"));
    EXPECT_FALSE(has_words(said, "120 s")) << said;
  }
}

TEST(WaitRecordText, OfOtherPlansShowsBothFingerprints) {
  EXPECT_THAT(
      describe({.what = WaitFor::kSamePlan, .rank = 0, .peer = 1, .epoch = 2, .seen = 0xabc, .expected = 0xdef}),
      Says("rank 1", "abc", "def", "counts"));
}

TEST(WaitTimeoutText, OnTheRankThatWaitedIsTheRecordItself) {
  const WaitRecord record{.what = WaitFor::kCredit, .rank = 1, .peer = 0, .epoch = 8, .timeout_ns = 1'000'000'000};
  const WaitTimeout error(record, 1);
  EXPECT_EQ(error.what(), describe(record));
  EXPECT_EQ(error.raised_on(), 1);
  EXPECT_EQ(error.record().peer, 0);
}

TEST(WaitTimeoutText, EndsWithTheDetail) {
  const WaitRecord record{.what = WaitFor::kConnection, .rank = 1, .peer = 0, .timeout_ns = 1'000'000'000};
  const WaitTimeout error(record, 1, "which was to listen at port 1");
  EXPECT_EQ(error.what(), describe(record) + ", which was to listen at port 1");
}

TEST(WaitTimeoutText, OnAPeerAlsoSaysWhoToldIt) {
  const WaitTimeout error({.what = WaitFor::kBand, .rank = 2, .peer = 2, .expert = 4, .band = 1, .epoch = 5}, 3);
  EXPECT_THAT(error.what(), Says("rank 3", "told by rank 2", "expert 4", "band 1", "epoch 5"));
  EXPECT_EQ(error.raised_on(), 3);
  EXPECT_EQ(error.record().rank, 2);
}

TEST(ErrorKinds, AreCaughtByTheBroaderKinds) {
  EXPECT_THROW(throw DTypeError("x"), InvalidArgument);
  EXPECT_THROW(throw CapacityError("x"), InvalidArgument);
  EXPECT_THROW(throw CallRefused("x"), Error);
  EXPECT_THROW(throw InternalError("x"), Error);
  EXPECT_THROW(throw WaitTimeout({}, 0), Error);
  EXPECT_THROW(throw InvalidArgument("x"), std::runtime_error);
}

}  // namespace
}  // namespace tileoverlap
