// The transport of ranks that share a process.

#include "tileoverlap/transport/in_process.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "support/build_kind.hpp"
#include "support/messages.hpp"
#include "support/rank_threads.hpp"
#include "tileoverlap/core/error.hpp"

namespace tileoverlap {
namespace {

using testing::message_of;
using testing::on_each_rank;
using testing::Says;

std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }
std::string text_of(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

TEST(InProcessWorld, MakesOneTransportPerRank) {
  const auto transports = make_in_process_world(3);
  ASSERT_EQ(transports.size(), 3u);
  for (int32_t rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(transports[static_cast<size_t>(rank)]->rank(), rank);
    EXPECT_EQ(transports[static_cast<size_t>(rank)]->world(), 3);
    EXPECT_THAT(transports[static_cast<size_t>(rank)]->repr(), Says(std::to_string(rank), "3"));
  }
}

TEST(InProcessWorld, RefusesAWorldWithoutRanks) {
  EXPECT_THAT(message_of<InvalidArgument>([] { make_in_process_world(0); }), Says("world", "0"));
  EXPECT_THAT(message_of<InvalidArgument>([] { make_in_process_world(-1); }), Says("world", "-1"));
}

TEST(SymmetricMemory, IsSeenByPeersOnceItIsThere) {
  const auto transports = make_in_process_world(2);
  const auto mine = transports[0]->allocate("terms=1", 64);
  EXPECT_EQ(mine->bytes(), 64u);
  EXPECT_EQ(mine->peer(0), mine->local());
  EXPECT_EQ(mine->peer(1), nullptr);
  const auto theirs = transports[1]->allocate("terms=1", 64);
  EXPECT_EQ(mine->peer(1), theirs->local());
  EXPECT_EQ(theirs->peer(0), mine->local());
  EXPECT_NE(mine->local(), theirs->local());
}

TEST(SymmetricMemory, IsZeroedEvenWhereTheHeapWasDirty) {
  constexpr size_t kBytes = 1 << 16;
  const auto transports = make_in_process_world(2);
  for (int round = 0; round < 8; ++round) {
    {
      std::vector<std::vector<unsigned char>> dirt;
      for (int i = 0; i < 4; ++i) dirt.emplace_back(kBytes, static_cast<unsigned char>(0xff));
      ASSERT_EQ(dirt.back().back(), 0xff);
    }
    for (const auto& transport : transports) {
      const auto memory = transport->allocate("round=" + std::to_string(round), kBytes);
      const auto* data = memory->local();
      ASSERT_TRUE(std::all_of(data, data + kBytes, [](std::byte b) { return b == std::byte{0}; }));
      std::memset(memory->local(), 0xff, kBytes);
    }
  }
}

TEST(SymmetricMemory, PairsTheNthAllocationOfEachRank) {
  const auto transports = make_in_process_world(2);
  const auto first0 = transports[0]->allocate("first", 16), second0 = transports[0]->allocate("second", 32);
  const auto first1 = transports[1]->allocate("first", 16), second1 = transports[1]->allocate("second", 32);
  EXPECT_EQ(first0->peer(1), first1->local());
  EXPECT_EQ(second0->peer(1), second1->local());
}

TEST(SymmetricMemory, NamesBothRanksAndBothTermsWhereTheyDiffer) {
  const auto transports = make_in_process_world(3);
  const auto kept = transports[0]->allocate("max_tokens=64 top_k=2", 64);
  EXPECT_THAT(message_of<InvalidArgument>([&] { transports[2]->allocate("max_tokens=32 top_k=2", 64); }),
              Says("rank 0", "rank 2", "max_tokens=64", "max_tokens=32"));
}

TEST(SymmetricMemory, NamesBothRanksAndBothSizesWhereTheyDiffer) {
  const auto transports = make_in_process_world(2);
  const auto kept = transports[0]->allocate("same", 64);
  EXPECT_THAT(message_of<InvalidArgument>([&] { transports[1]->allocate("same", 128); }),
              Says("rank 0", "rank 1", "64", "128"));
}

TEST(SymmetricMemory, ARefusedRankMayTryAgain) {
  const auto transports = make_in_process_world(2);
  const auto first = transports[0]->allocate("a=1", 64);
  message_of<InvalidArgument>([&] { transports[1]->allocate("a=2", 64); });
  const auto second = transports[1]->allocate("a=1", 64);
  EXPECT_EQ(first->peer(1), second->local());
}

TEST(SymmetricMemory, OutlivesTheTransportsAndThePeersHandles) {
  std::shared_ptr<SymmetricMemory> mine;
  std::byte* theirs = nullptr;
  {
    const auto transports = make_in_process_world(2);
    mine = transports[0]->allocate("a", 64);
    const auto peer = transports[1]->allocate("a", 64);
    theirs = peer->local();
  }
  ASSERT_EQ(mine->peer(1), theirs);
  std::memset(mine->peer(1), 1, 64);  // freed memory is for the address sanitizer to find
  EXPECT_EQ(mine->peer(1)[63], std::byte{1});
}

TEST(Exchange, GathersMessagesOfDifferentLengthsByRank) {
  const auto transports = make_in_process_world(3);
  std::vector<std::unique_ptr<Exchange>> exchanges;
  for (const auto& transport : transports) exchanges.push_back(transport->open_exchange());
  on_each_rank(3, [&](int32_t rank) {
    const std::string mine(static_cast<size_t>(rank), static_cast<char>('a' + rank));
    const auto all = exchanges[static_cast<size_t>(rank)]->all_gather(bytes_of(mine), 60'000'000'000);
    ASSERT_EQ(all.size(), 3u);
    EXPECT_EQ(text_of(all[0]), "");
    EXPECT_EQ(text_of(all[1]), "b");
    EXPECT_EQ(text_of(all[2]), "cc");
  });
}

TEST(Exchange, KeepsRoundsApartWhenOneRankRunsAhead) {
  const auto transports = make_in_process_world(2);
  std::vector<std::unique_ptr<Exchange>> exchanges;
  for (const auto& transport : transports) exchanges.push_back(transport->open_exchange());
  on_each_rank(2, [&](int32_t rank) {
    for (int round = 0; round < 500; ++round) {
      const std::string mine = std::to_string(round) + "/" + std::to_string(rank);
      const auto all = exchanges[static_cast<size_t>(rank)]->all_gather(bytes_of(mine), 60'000'000'000);
      ASSERT_EQ(text_of(all[0]), std::to_string(round) + "/0");
      ASSERT_EQ(text_of(all[1]), std::to_string(round) + "/1");
    }
  });
}

TEST(Exchange, NamesTheFirstRankThatIsMissing) {
  const auto transports = make_in_process_world(4);
  const auto exchange = transports[2]->open_exchange();
  try {
    exchange->all_gather(bytes_of("x"), 50'000'000);
    FAIL() << "did not throw";
  } catch (const WaitTimeout& error) {
    EXPECT_EQ(error.record().rank, 2);
    EXPECT_EQ(error.record().peer, 0);
    EXPECT_EQ(error.record().timeout_ns, 50'000'000);
    EXPECT_THAT(error.what(), Says("rank 2", "rank 0", "0.05 s"));
  }
}

TEST(Exchange, GivesUpWhenItIsToldThatTheMissingRankWillNotCome) {
  const auto transports = make_in_process_world(3);
  const auto exchange = transports[0]->open_exchange();
  const auto begin = std::chrono::steady_clock::now();
  std::vector<int32_t> asked;
  const auto all = exchange->all_gather(bytes_of("x"), 60'000'000'000, [&](int32_t missing) {
    asked.push_back(missing);
    return asked.size() == 3;
  });
  EXPECT_TRUE(all.empty());
  EXPECT_EQ(asked, (std::vector<int32_t>{1, 1, 1}));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
}

TEST(Exchange, PostGoesOnWithoutTheOthersAndIsAStepLikeAnyOther) {
  const auto transports = make_in_process_world(2);
  std::vector<std::unique_ptr<Exchange>> exchanges;
  for (const auto& transport : transports) exchanges.push_back(transport->open_exchange());
  exchanges[0]->post(bytes_of("first"));  // returns though rank 1 is not there
  exchanges[0]->post(bytes_of("second"));
  EXPECT_EQ(text_of(exchanges[1]->all_gather(bytes_of("a"), 60'000'000'000)[0]), "first");
  EXPECT_EQ(text_of(exchanges[1]->all_gather(bytes_of("b"), 60'000'000'000)[0]), "second");
  exchanges[1]->post(bytes_of("c"));
  EXPECT_EQ(text_of(exchanges[0]->all_gather(bytes_of("third"), 60'000'000'000)[1]), "c");
}

TEST(Exchange, IsOutOfStepForAllRanksAfterOneGaveUp) {
  const auto transports = make_in_process_world(2);
  std::vector<std::unique_ptr<Exchange>> exchanges;
  for (const auto& transport : transports) exchanges.push_back(transport->open_exchange());
  EXPECT_THROW(exchanges[0]->all_gather(bytes_of("x"), 20'000'000), WaitTimeout);
  // Rank 1 completes the step that rank 0 has left, but no later one.
  EXPECT_EQ(text_of(exchanges[1]->all_gather(bytes_of("y"), 60'000'000'000)[0]), "x");
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_THAT(message_of<WaitTimeout>([&] { exchanges[1]->all_gather(bytes_of("z"), 60'000'000'000); }),
              Says("told by rank 0", "rank 1", "0.02 s"));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
}

TEST(Exchange, GivingUpEndsTheWaitOfOthers) {
  const auto transports = make_in_process_world(3);
  std::vector<std::unique_ptr<Exchange>> exchanges;
  for (const auto& transport : transports) exchanges.push_back(transport->open_exchange());
  const auto begin = std::chrono::steady_clock::now();
  on_each_rank(2, [&](int32_t rank) {  // rank 2 stays away; rank 0 is the impatient one
    const int64_t limit = rank == 0 ? 50'000'000 : 60'000'000'000;
    EXPECT_THAT(
        message_of<WaitTimeout>([&] { exchanges[static_cast<size_t>(rank)]->all_gather(bytes_of("x"), limit); }),
        Says("rank 0", "rank 2", "0.05 s"));
  });
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
}

TEST(SymmetricMemory, HasAnExchangeOfItsOwn) {
  const auto transports = make_in_process_world(2);
  const auto mine = transports[0]->allocate("a", 8), theirs = transports[1]->allocate("a", 8);
  const auto other = transports[0]->open_exchange();
  other->post(bytes_of("elsewhere"));
  theirs->exchange().post(bytes_of("here"));
  EXPECT_EQ(text_of(mine->exchange().all_gather(bytes_of("x"), 60'000'000'000)[1]), "here");
}

TEST(SymmetricMemory, IsPassedOverWhereARankLetGoBeforeAllHadJoined) {
  const auto transports = make_in_process_world(2);
  transports[0]->allocate("wrong", 8).reset();
  const auto mine = transports[0]->allocate("right", 16), theirs = transports[1]->allocate("right", 16);
  EXPECT_EQ(mine->peer(1), theirs->local());
  EXPECT_EQ(theirs->peer(0), mine->local());
}

TEST(SymmetricMemory, OfMoreBytesThanThereAreIsRefused) {
  if (testing::kSanitized) GTEST_SKIP() << "a sanitizer ends the program where malloc would return null";
  const auto transport = make_in_process_world(1)[0];
  EXPECT_THAT(message_of<Error>([&] { transport->allocate("a", size_t{1} << 62); }),
              Says("rank 0", "4611686018427387904"));
}

TEST(Exchange, IsNotCancelledWhenNobodyIsMissing) {
  const auto transports = make_in_process_world(1);
  const auto exchange = transports[0]->open_exchange();
  const auto all = exchange->all_gather(bytes_of("x"), 1'000'000, [](int32_t) { return true; });
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(text_of(all[0]), "x");
}

}  // namespace
}  // namespace tileoverlap
