#pragma once
// A host all-gather over MPI, for programs that have it. Header-only and not part of tileoverlap.hpp: the library knows
// no MPI, and this compiles against the program's own.

#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tileoverlap/core/env.hpp"
#include "tileoverlap/core/error.hpp"
#include "tileoverlap/transport/mapped.hpp"

namespace tileoverlap {

namespace mpi_gather {

// One all-gather under way: MPI reads and writes these until it is complete.
struct Step {
  std::vector<std::byte> mine, all;
  int length = 0;
  std::vector<int> lengths, places;
  MPI_Request request = MPI_REQUEST_NULL;
};

class Gather {
 public:
  Gather(MPI_Comm comm, int64_t limit_ns) : limit_ns_(limit_ns > 0 ? limit_ns : Env::read().timeout_ns) {
    check(MPI_Comm_dup(comm, &comm_), "MPI_Comm_dup");
    MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
    check(MPI_Comm_rank(comm_, &rank_), "MPI_Comm_rank");
    check(MPI_Comm_size(comm_, &world_), "MPI_Comm_size");
  }
  Gather(const Gather&) = delete;
  Gather& operator=(const Gather&) = delete;
  // The communicator is not freed: that is collective, and copies of the function end where they end. MPI_Finalize
  // takes it.
  ~Gather() = default;

  std::vector<std::vector<std::byte>> operator()(std::span<const std::byte> mine) {
    if (!failure_.empty()) throw Error(failure_);
    auto step = std::make_unique<Step>();
    try {
      return gather(*step, mine);
    } catch (const Error& error) {
      failure_ = error.what();
      if (step->request != MPI_REQUEST_NULL) static_cast<void>(step.release());  // MPI still uses it
      throw;
    }
  }

 private:
  std::vector<std::vector<std::byte>> gather(Step& step, std::span<const std::byte> mine) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::nanoseconds(limit_ns_);
    constexpr auto kMost = static_cast<size_t>(std::numeric_limits<int>::max());
    if (mine.size() > kMost / static_cast<size_t>(world_)) {
      throw InvalidArgument("a message over MPI must have at most " +
                            std::to_string(kMost / static_cast<size_t>(world_)) + " bytes in a world of " +
                            std::to_string(world_) + ", rank " + std::to_string(rank_) + " gave one of " +
                            std::to_string(mine.size()));
    }
    const auto world = static_cast<size_t>(world_);
    step.mine.assign(mine.begin(), mine.end());
    step.length = static_cast<int>(mine.size());
    step.lengths.resize(world);
    step.places.resize(world);
    check(MPI_Iallgather(&step.length, 1, MPI_INT, step.lengths.data(), 1, MPI_INT, comm_, &step.request),
          "MPI_Iallgather");
    wait(step, end);
    std::exclusive_scan(step.lengths.begin(), step.lengths.end(), step.places.begin(), 0);
    step.all.resize(static_cast<size_t>(step.places.back()) + static_cast<size_t>(step.lengths.back()));
    check(MPI_Iallgatherv(step.mine.data(), step.length, MPI_BYTE, step.all.data(), step.lengths.data(),
                          step.places.data(), MPI_BYTE, comm_, &step.request),
          "MPI_Iallgatherv");
    wait(step, end);
    std::vector<std::vector<std::byte>> messages;
    for (size_t rank = 0; rank < world; ++rank) {
      const auto begin = step.all.begin() + step.places[rank];
      messages.emplace_back(begin, begin + step.lengths[rank]);
    }
    return messages;
  }

  void wait(Step& step, std::chrono::steady_clock::time_point end) const {
    using std::chrono::microseconds;
    constexpr microseconds kLongestPause(1000);
    for (microseconds pause(1);; pause = std::min(2 * pause, kLongestPause)) {
      int done = 0;
      check(MPI_Test(&step.request, &done, MPI_STATUS_IGNORE), "MPI_Test");
      if (done != 0) return;
      if (std::chrono::steady_clock::now() >= end) {
        throw Error("rank " + std::to_string(rank_) + " waited " +
                    std::to_string(static_cast<double>(limit_ns_) * 1e-9) + " s for the host messages of all " +
                    std::to_string(world_) + " ranks of its MPI communicator");
      }
      std::this_thread::sleep_for(pause);
    }
  }

  void check(int code, const char* what) const {
    if (code == MPI_SUCCESS) return;
    char said[MPI_MAX_ERROR_STRING] = {};
    int length = 0;
    MPI_Error_string(code, said, &length);
    throw Error(std::string(what) + " of rank " + std::to_string(rank_) +
                " failed: " + std::string(said, static_cast<size_t>(length)));
  }

  const int64_t limit_ns_;
  MPI_Comm comm_ = MPI_COMM_NULL;
  int rank_ = -1, world_ = 0;
  std::string failure_;
};

}  // namespace mpi_gather

// Collective over `comm`, which is duplicated: the program's other calls do not get between. Each call of the function
// waits for the other ranks, `limit_ns` at most (0: TILEOVERLAP_TIMEOUT_S), then throws Error with the limit, and so do
// all later calls: MPI does not say who is missing. MPI_Init_thread with MPI_THREAD_MULTIPLE unless only one thread
// calls MPI while the library does; calls must have ended before MPI_Finalize.
// Errors: InvalidArgument for a message of more than (2^31 - 1) / ranks bytes; Error for what MPI reports.
inline HostAllGather make_mpi_all_gather(MPI_Comm comm, int64_t limit_ns = 0) {
  const auto gather = std::make_shared<mpi_gather::Gather>(comm, limit_ns);
  return [gather](std::span<const std::byte> mine) { return (*gather)(mine); };
}

}  // namespace tileoverlap
