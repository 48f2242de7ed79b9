// The all-gather over TCP where somebody else is: ports in use, visitors and servers that are no ranks, files left
// behind.

#include <gtest/gtest.h>

#include <string>
#include <thread>

#include "support/messages.hpp"
#include "support/rank_threads.hpp"
#include "support/session_world.hpp"
#include "support/tcp_world.hpp"
#include "tileoverlap/core/error.hpp"
#include "tileoverlap/transport/tcp_gather.hpp"

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
using testing::Stranger;

TcpGatherOptions options(int32_t rank, const std::string& address, int64_t limit_ns = kNoLimitReached) {
  return {.rank = rank, .world = 2, .address = address, .limit_ns = limit_ns};
}

void meet(const std::string& address) {
  on_each_rank(2, [&](int32_t rank) {
    const HostAllGather gather = make_tcp_all_gather(options(rank, address));
    EXPECT_EQ(gather({}).size(), 2u);
  });
}

TEST(TcpGatherStrangers, APortInUseIsSaidAtOnce) {
  const Stranger other = Stranger::listening();
  const std::string address = loopback(other.port());
  EXPECT_THAT(message_of<Error>([&] { make_tcp_all_gather(options(0, address)); }),
              Says("rank 0", address, "Address already in use"));
}

TEST(TcpGatherStrangers, AVisitorThatIsNoRankIsShownAndTold) {
  const uint16_t port = free_port();
  std::thread visitor([&] {
    const Stranger browser = Stranger::connected(port);
    browser.send("GET / HTTP/1.1\r\n\r\n");
    EXPECT_THAT(browser.receive_to_the_end(), Says("is no rank of this library", "'GET / HT'"));
  });
  EXPECT_THAT(message_of<Error>([&] { make_tcp_all_gather(options(0, loopback(port))); }),
              Says(loopback(port), "from 127.0.0.1", "'GET / HT' in place of 'tovgath1'"));
  visitor.join();
}

TEST(TcpGatherStrangers, AVisitorThatSaysNothingIsPassedOver) {
  const uint16_t port = free_port();
  std::thread visitor([&] { Stranger::connected(port); });
  std::thread root([&] { EXPECT_EQ(make_tcp_all_gather(options(0, loopback(port)))({}).size(), 2u); });
  visitor.join();
  EXPECT_EQ(make_tcp_all_gather(options(1, loopback(port)))({}).size(), 2u);
  root.join();
}

TEST(TcpGatherStrangers, AServerThatIsNoRankZeroIsShown) {
  Stranger server = Stranger::listening();
  std::thread answer([&] { server.answer_one("220 mail ready\r\n"); });
  EXPECT_THAT(message_of<Error>([&] { make_tcp_all_gather(options(1, loopback(server.port()))); }),
              Says("rank 1", loopback(server.port()), "'220 mail' in place of 'tovgath1'"));
  answer.join();
}

TEST(TcpGatherStrangers, AServerThatSaysNothingIsNamedAtTheLimit) {
  const Stranger server = Stranger::listening();
  EXPECT_THAT(message_of<WaitTimeout>([&] { make_tcp_all_gather(options(1, loopback(server.port()), kShortLimit)); }),
              Says("rank 1", "rank 0", loopback(server.port()), "it does not answer"));
}

TEST(TcpGatherStrangers, AFileLeftBehindIsPassedOver) {
  const std::string mark = "tileoverlap-store-1 ";
  Stranger server = Stranger::listening(), silent = Stranger::listening();
  std::thread answer([&] { server.answer_one("220 mail ready\r\n"); });
  for (const std::string& left : {mark + loopback(free_port()) + " 17\n",    // nobody listens there any more
                                  mark + loopback(server.port()) + " 17\n",  // something else does
                                  mark + loopback(silent.port()) + " 17\n",  // and does not speak
                                  mark + "nonsense 17\n", std::string("{}"), std::string()}) {
    const StorePlace place;
    place.write(left);
    std::thread late([&] {
      const HostAllGather gather = make_tcp_all_gather(options(1, place.address()));
      EXPECT_EQ(gather({}).size(), 2u);
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(50));  // so that rank 1 sees what was left
    EXPECT_EQ(make_tcp_all_gather(options(0, place.address()))({}).size(), 2u);
    late.join();
    EXPECT_TRUE(place.is_empty());
  }
  answer.join();
}

TEST(TcpGatherStrangers, AFileThatLeadsToAnotherRunDoesNotMixThem) {
  const StorePlace other, place;
  std::thread other_root([&] { EXPECT_EQ(make_tcp_all_gather(options(0, other.address()))({}).size(), 2u); });
  std::string content = other.await_content();
  const size_t number = content.rfind(' ') + 1;
  place.write(content.substr(0, number) + "17\n");
  std::thread mine([&] { EXPECT_EQ(make_tcp_all_gather(options(1, place.address()))({}).size(), 2u); });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_EQ(make_tcp_all_gather(options(0, place.address()))({}).size(), 2u);
  mine.join();
  EXPECT_EQ(make_tcp_all_gather(options(1, other.address()))({}).size(), 2u);
  other_root.join();
}

TEST(TcpGatherStrangers, RunsAtOnePortOneAfterTheOther) {
  const std::string address = loopback(free_port());
  for (int run = 0; run < 3; ++run) meet(address);
}

}  // namespace
}  // namespace tileoverlap
