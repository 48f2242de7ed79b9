// The all-gather over TCP when a process dies: the others know at once.

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
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

using testing::kNoLimitReached;
using testing::message_of;
using testing::on_each_rank;
using testing::Says;
using testing::StorePlace;

// A process that joins as `rank`, gathers once and then does nothing, until it is killed.
pid_t start_rank(int32_t rank, int32_t world, const std::string& address) {
  const pid_t child = fork();
  if (child != 0) return child;
  alarm(60);  // should the test end without killing it
  const HostAllGather gather =
      make_tcp_all_gather({.rank = rank, .world = world, .address = address, .limit_ns = kNoLimitReached});
  gather({});
  while (true) pause();
}

void kill_and_wait(pid_t child) {
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
}

TEST(TcpGatherDeath, IsKnownAtOnceToAllSurvivorsByName) {
  for (const int32_t victim : {0, 1, 2}) {
    const StorePlace place;
    const pid_t child = start_rank(victim, 3, place.address());
    const auto begin = std::chrono::steady_clock::now();
    std::atomic<int> joined = 0;
    on_each_rank(2, [&](int32_t thread) {
      const int32_t rank = thread < victim ? thread : thread + 1;
      const HostAllGather gather =
          make_tcp_all_gather({.rank = rank, .world = 3, .address = place.address(), .limit_ns = kNoLimitReached});
      gather({});
      ++joined;
      while (joined < 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      if (thread == 0) kill_and_wait(child);
      EXPECT_THAT(message_of<Error>([&] { gather({}); }), Says("rank " + std::to_string(victim) + " has closed"));
    });
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::nanoseconds(kNoLimitReached / 2));
  }
}

TEST(TcpGatherDeath, BeforeAllRanksAreThereIsKnownAtOnce) {
  const StorePlace place;
  const pid_t child = start_rank(0, 3, place.address());
  place.await_content();
  const auto join = [&] {
    make_tcp_all_gather({.rank = 1,
                         .world = 3,
                         .address = place.address(),
                         .limit_ns = kNoLimitReached,
                         .interrupt = [&, calls = 0]() mutable {
                           if (++calls == 15) kill_and_wait(child);  // after a second: rank 0 has answered
                         }});
  };
  EXPECT_THAT(message_of<Error>(join), Says("rank 0 has closed", "before all ranks were there"));
}

}  // namespace
}  // namespace tileoverlap
