// The all-gather over TCP, a thread a rank: what it gathers, and what it says when ranks are missing or disagree.

#include "tileoverlap/transport/tcp_gather.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "support/messages.hpp"
#include "support/rank_threads.hpp"
#include "support/session_world.hpp"
#include "support/tcp_world.hpp"
#include "tileoverlap/core/error.hpp"

namespace tileoverlap {
namespace {

using testing::free_port;
using testing::kNoLimitReached;
using testing::kShortLimit;
using testing::loopback;
using testing::message_of;
using testing::on_each_rank;
using testing::Says;
using testing::StorePlace;
using Messages = std::vector<std::vector<std::byte>>;

std::vector<std::byte> message(int32_t rank, size_t bytes) {
  return std::vector<std::byte>(bytes, static_cast<std::byte>('a' + rank));
}

TcpGatherOptions options(int32_t rank, int32_t world, const std::string& address, int64_t limit_ns = kNoLimitReached) {
  return {.rank = rank, .world = world, .address = address, .limit_ns = limit_ns};
}

// What a WaitTimeout says of who waited for whom.
WaitRecord record_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const WaitTimeout& error) {
    return error.record();
  }
  ADD_FAILURE() << "no WaitTimeout";
  return {};
}

void gather_many(int32_t world, const std::string& address) {
  on_each_rank(world, [&](int32_t rank) {
    const HostAllGather gather = make_tcp_all_gather(options(rank, world, address));
    for (size_t round = 0; round < 50; ++round) {
      const Messages all = gather(message(rank, round * static_cast<size_t>(rank)));
      ASSERT_EQ(all.size(), static_cast<size_t>(world));
      for (int32_t peer = 0; peer < world; ++peer) {
        ASSERT_EQ(all[static_cast<size_t>(peer)], message(peer, round * static_cast<size_t>(peer)));
      }
    }
  });
}

TEST(TcpGather, GathersMessagesOfDifferentLengthsByRank) {
  for (const int32_t world : {1, 2, 3, 7}) {
    const StorePlace place;
    gather_many(world, place.address());
    EXPECT_TRUE(place.is_empty()) << "rank 0 removes its file";
  }
}

TEST(TcpGather, MeetsAtAPortOfIPv4AndOfAName) {
  gather_many(2, loopback(free_port()));
  gather_many(3, "localhost:" + std::to_string(free_port()));
}

TEST(TcpGather, CarriesLongMessagesOfAllRanks) {
  const StorePlace place;
  constexpr size_t kLong = size_t{8} << 20;
  on_each_rank(3, [&](int32_t rank) {
    const HostAllGather gather = make_tcp_all_gather(options(rank, 3, place.address()));
    for (int round = 0; round < 2; ++round) {
      const Messages all = gather(message(rank, kLong));
      for (int32_t peer = 0; peer < 3; ++peer) EXPECT_EQ(all[static_cast<size_t>(peer)], message(peer, kLong));
    }
  });
}

TEST(TcpGather, WaitsForALateRank) {
  const StorePlace place;
  on_each_rank(3, [&](int32_t rank) {
    if (rank != 1) std::this_thread::sleep_for(std::chrono::milliseconds(100 * rank + 100));
    const HostAllGather gather = make_tcp_all_gather(options(rank, 3, place.address()));
    std::this_thread::sleep_for(std::chrono::milliseconds(100 * (2 - rank)));
    EXPECT_EQ(gather(message(rank, 1)).size(), 3u);
  });
}

TEST(TcpGather, NamesTheFirstRankThatDoesNotCome) {
  const StorePlace place;
  on_each_rank(2, [&](int32_t rank) {
    const WaitRecord record = record_of([&] { make_tcp_all_gather(options(rank, 4, place.address(), kShortLimit)); });
    EXPECT_EQ(record.what, WaitFor::kConnection);
    EXPECT_EQ(record.peer, 2);
    EXPECT_EQ(record.timeout_ns, kShortLimit);
  });
  EXPECT_TRUE(place.is_empty());
}

TEST(TcpGather, SaysWhereRankZeroWasToListen) {
  const std::string address = loopback(free_port());
  const auto join = [&](const std::string& where) {
    return message_of<WaitTimeout>([&] { make_tcp_all_gather(options(1, 2, where, kShortLimit)); });
  };
  EXPECT_THAT(join(address), Says("rank 1", "rank 0", "0.3 s", address, "Connection refused"));
  EXPECT_THAT(join("no-such-host.invalid:1"), Says("rank 1", "rank 0", "no-such-host.invalid:1"));
  const StorePlace place;
  EXPECT_THAT(join(place.address()), Says("rank 1", "rank 0", place.path(), "No such file"));
}

TEST(TcpGather, NamesTheFirstRankWithoutAMessageOnAllRanksAndLaterToo) {
  for (const int32_t absent : {0, 2}) {
    const StorePlace place;
    std::atomic<int> over = 0;
    on_each_rank(3, [&](int32_t rank) {
      const HostAllGather gather = make_tcp_all_gather(options(rank, 3, place.address(), 2 * kShortLimit));
      gather({});
      if (rank == absent) {
        while (over < 2) std::this_thread::sleep_for(std::chrono::milliseconds(5));
        EXPECT_THAT(message_of<WaitTimeout>([&] { gather({}); }), Says("epoch 2", "rank " + std::to_string(absent)));
        return;
      }
      for (int again = 0; again < 2; ++again) {
        const WaitRecord record = record_of([&] { gather({}); });
        EXPECT_EQ(record.what, WaitFor::kHostMessage);
        EXPECT_EQ(record.peer, absent);
        EXPECT_EQ(record.epoch, 2u);
      }
      ++over;
      while (over < 2) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    });
  }
}

TEST(TcpGather, RefusesWorldsThatDifferOnBothRanks) {
  const StorePlace place;
  on_each_rank(2, [&](int32_t rank) {
    EXPECT_THAT(
        message_of<InvalidArgument>([&] { make_tcp_all_gather(options(rank, rank == 0 ? 3 : 4, place.address())); }),
        Says("world", "3 (rank 0)", "4 (rank 1"));
  });
}

TEST(TcpGather, RefusesARankThatIsNamedTwice) {
  const StorePlace place;
  on_each_rank(3, [&](int32_t thread) {
    EXPECT_THAT(
        message_of<InvalidArgument>([&] { make_tcp_all_gather(options(thread == 0 ? 0 : 1, 3, place.address())); }),
        Says("two processes", "rank 1 of 3", "one from"));
  });
}

TEST(TcpGather, EndsOnAllRanksWhereOneLetsGo) {
  for (const int32_t leaver : {0, 1}) {
    const StorePlace place;
    on_each_rank(3, [&](int32_t rank) {
      const HostAllGather gather = make_tcp_all_gather(options(rank, 3, place.address()));
      if (rank == leaver) return;
      const std::string said = message_of<Error>([&] { gather({}); });
      EXPECT_THAT(said, Says("rank " + std::to_string(leaver) + " has closed", "host all-gather 1"));
      EXPECT_EQ(message_of<Error>([&] { gather({}); }), said);
    });
  }
}

TEST(TcpGather, RefusesAMessageThatIsTooLongOnAllRanks) {
  const StorePlace place;
  on_each_rank(2, [&](int32_t rank) {
    const HostAllGather gather = make_tcp_all_gather(options(rank, 2, place.address()));
    const auto mine = message(rank, rank == 1 ? static_cast<size_t>(kMostMessageBytes) + 1 : 0);
    EXPECT_THAT(message_of<InvalidArgument>([&] { gather(mine); }), Says("268435456", "268435457", "rank 1"));
  });
}

TEST(TcpGather, AnInterruptEndsTheWaitAndIsToldToTheOthers) {
  const StorePlace place;
  std::atomic<bool> stop = false;
  on_each_rank(2, [&](int32_t rank) {
    TcpGatherOptions mine = options(rank, 2, place.address());
    if (rank == 1) {
      mine.interrupt = [&] {
        if (stop) throw std::runtime_error("ctrl-c");
      };
    }
    const HostAllGather gather = make_tcp_all_gather(mine);
    gather({});
    if (rank == 1) {
      stop = true;
      EXPECT_EQ(message_of<std::runtime_error>([&] { gather({}); }), "ctrl-c");
    } else {
      while (!stop) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
    }
    EXPECT_THAT(message_of<Error>([&] { gather({}); }), Says("rank 1", "interrupted"));
  });
}

TEST(TcpGather, RefusesWhatCannotBe) {
  const auto said = [](const TcpGatherOptions& wrong) {
    return message_of<InvalidArgument>([&] { make_tcp_all_gather(wrong); });
  };
  EXPECT_THAT(said(options(0, 0, "localhost:1")), Says("world", "0"));
  EXPECT_THAT(said(options(2, 2, "localhost:1")), Says("rank", "0..1", "2"));
  EXPECT_THAT(said(options(-1, 2, "localhost:1")), Says("rank", "-1"));
  EXPECT_THAT(said(options(0, 2, "localhost:1", -5)), Says("limit_ns", "-5"));
  for (const char* address : {"", "localhost", "localhost:", ":80", "localhost:0", "localhost:65536", "localhost:http",
                              "::1:80", "[]:80", "file:"}) {
    EXPECT_THAT(said(options(0, 2, address)), Says("HOST:PORT", "file:PATH", "'" + std::string(address) + "'"));
  }
}

TEST(TcpGather, SaysWhereTheFileCannotBeWritten) {
  EXPECT_THAT(message_of<Error>([] { make_tcp_all_gather(options(0, 2, "file:/no/such/folder/store")); }),
              Says("rank 0", "'/no/such/folder/store'", "No such file"));
}

}  // namespace
}  // namespace tileoverlap
