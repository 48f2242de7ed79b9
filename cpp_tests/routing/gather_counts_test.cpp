// Gathering the counts matrix from ranks that each have a thread of their own.

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <vector>

#include "support/host_tensor.hpp"
#include "support/messages.hpp"
#include "support/random.hpp"
#include "support/rank_threads.hpp"
#include "support/scoped_env.hpp"
#include "tileoverlap/core/error.hpp"
#include "tileoverlap/transport/in_process.hpp"

namespace tileoverlap {
namespace {

using std::chrono::steady_clock;
using testing::HostTensor;
using testing::message_of;
using testing::on_each_rank;
using testing::Random;
using testing::Says;
using testing::ScopedEnv;

constexpr int64_t kLong = 60'000'000'000, kShort = 100'000'000;

std::vector<std::unique_ptr<Exchange>> open_exchanges(int32_t world) {
  std::vector<std::unique_ptr<Exchange>> exchanges;
  for (const auto& transport : make_in_process_world(world)) exchanges.push_back(transport->open_exchange());
  return exchanges;
}

TEST(GatherCounts, GivesEveryRankTheSameMatrixRoundAfterRound) {
  constexpr int32_t kWorld = 4;
  constexpr int kRounds = 50;
  const Placement placement = Placement::even(kWorld, 6);
  const auto exchanges = open_exchanges(kWorld);
  std::vector<std::vector<HostTensor>> ids(kWorld);
  Random random(5);
  for (auto& rounds : ids) {
    for (int round = 0; round < kRounds; ++round) {
      HostTensor tensor(DType::kInt64, {random.between(0, 5), 2});
      for (int64_t i = 0; i < tensor.elements(); ++i) tensor.put(i, random.between(-1, 5));
      rounds.push_back(std::move(tensor));
    }
  }
  on_each_rank(kWorld, [&](int32_t rank) {
    for (size_t round = 0; round < kRounds; ++round) {
      const RouteCounts got = gather_counts(*exchanges[static_cast<size_t>(rank)], placement, rank,
                                            ids[static_cast<size_t>(rank)][round].arg(), kLong);
      std::vector<TensorArg> all;
      for (const auto& rounds : ids) all.push_back(rounds[round].arg());
      const RouteCounts expected = count_routes(placement, all);
      ASSERT_TRUE(std::ranges::equal(got.values(), expected.values())) << "rank " << rank << ", round " << round;
    }
  });
}

TEST(GatherCounts, OfAWorldOfOneNeedsNobody) {
  const auto exchanges = open_exchanges(1);
  const HostTensor ids(DType::kInt32, {3, 1}, {1, -1, 1});
  const RouteCounts counts = gather_counts(*exchanges[0], Placement::even(1, 2), 0, ids.arg(), kShort);
  EXPECT_EQ(counts.at(0, 1), 2);
}

TEST(GatherCounts, NamesTheRankThatNeverCame) {
  const auto exchanges = open_exchanges(3);
  const HostTensor ids(DType::kInt32, {1, 1}, {0});
  const auto begin = steady_clock::now();
  on_each_rank(2, [&](int32_t rank) {  // rank 2 stays away
    try {
      gather_counts(*exchanges[static_cast<size_t>(rank)], Placement::even(3, 3), rank, ids.arg(), kShort);
      ADD_FAILURE() << "rank " << rank << " did not notice";
    } catch (const WaitTimeout& error) {
      EXPECT_THAT(error.what(), Says("rank " + std::to_string(rank), "rank 2", "counts", "0.1 s", "routing"));
      EXPECT_EQ(error.record().what, WaitFor::kCounts);
      EXPECT_EQ(error.raised_on(), rank);
      EXPECT_EQ(error.record().peer, 2);
    }
  });
  const auto took = steady_clock::now() - begin;
  EXPECT_GE(took, std::chrono::nanoseconds(kShort));
  EXPECT_LT(took, std::chrono::seconds(2));
}

TEST(GatherCounts, TakesItsLimitFromTheEnvironmentWhereNoneIsGiven) {
  const ScopedEnv timeout("TILEOVERLAP_TIMEOUT_S", "0.05");
  const auto exchanges = open_exchanges(2);
  const HostTensor ids(DType::kInt32, {1, 1}, {0});
  EXPECT_THAT(message_of<WaitTimeout>([&] { gather_counts(*exchanges[0], Placement::even(2, 2), 0, ids.arg()); }),
              Says("rank 1", "0.05 s"));
}

TEST(GatherCounts, RefusesBadIdsWithoutWaitingAndTellsTheOthers) {
  const auto exchanges = open_exchanges(3);
  const Placement placement = Placement::even(3, 3);
  const HostTensor bad(DType::kInt32, {1, 1}, {9}), good(DType::kInt32, {1, 1}, {2});
  // Nobody else is there yet: a wait for them would last a minute.
  const std::string said =
      message_of<InvalidArgument>([&] { gather_counts(*exchanges[1], placement, 1, bad.arg(), kLong); });
  EXPECT_THAT(said, Says("rank 1", "got 9"));
  on_each_rank(2, [&](int32_t thread) {
    const int32_t rank = 2 * thread;
    const std::string told = message_of<CallRefused>(
        [&] { gather_counts(*exchanges[static_cast<size_t>(rank)], placement, rank, good.arg(), kLong); });
    EXPECT_THAT(told, Says("rank 1"));
    EXPECT_NE(told.find(said), std::string::npos) << told;
  });
  // The next step is one of all ranks again.
  on_each_rank(3, [&](int32_t rank) {
    const RouteCounts counts = gather_counts(*exchanges[static_cast<size_t>(rank)], placement, rank, good.arg(), kLong);
    EXPECT_EQ(counts.at(1, 2), 1);
  });
}

TEST(GatherCounts, RefusesRanksThatCountAnotherNumberOfExperts) {
  const auto exchanges = open_exchanges(2);
  const HostTensor ids(DType::kInt32, {1, 1}, {0});
  on_each_rank(2, [&](int32_t rank) {
    const int32_t experts = rank == 0 ? 4 : 6;
    EXPECT_THAT(message_of<InvalidArgument>([&] {
                  gather_counts(*exchanges[static_cast<size_t>(rank)], Placement::even(2, experts), rank, ids.arg(),
                                kLong);
                }),
                Says("rank 0", "rank 1", "4", "6"));
  });
}

TEST(GatherCounts, OfOneExchangeDoNotMixWithThoseOfAnother) {
  const auto transports = make_in_process_world(2);
  std::vector<std::unique_ptr<Exchange>> first, second;
  for (const auto& transport : transports) {
    first.push_back(transport->open_exchange());
    second.push_back(transport->open_exchange());
  }
  const HostTensor zeros(DType::kInt32, {2, 1}, {0, 0}), ones(DType::kInt32, {1, 1}, {1});
  const Placement placement = Placement::even(2, 2);
  on_each_rank(2, [&](int32_t rank) {
    const auto r = static_cast<size_t>(rank);
    // Rank 1 enters them in the other order than rank 0, each from a thread of its own.
    std::thread other(
        [&] { EXPECT_EQ(gather_counts(*second[r], placement, rank, ones.arg(), kLong).at(1 - rank, 1), 1); });
    if (rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_EQ(gather_counts(*first[r], placement, rank, zeros.arg(), kLong).at(1 - rank, 0), 2);
    other.join();
  });
}

}  // namespace
}  // namespace tileoverlap
