// The all-gather over MPI: one program on each rank, started by mpirun. Says what fails and exits with 1.

#include "tileoverlap/transport/mpi_gather.hpp"

#include <cstdio>
#include <string>
#include <vector>

namespace {

int failures = 0;

void expect(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "failed: %s\n", what);
  ++failures;
}

std::vector<std::byte> message(int rank, size_t bytes) {
  return std::vector<std::byte>(bytes, static_cast<std::byte>('a' + rank));
}

}  // namespace

int main(int argc, char** argv) {
  int provided = 0, rank = 0, world = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &world);
  expect(world == 3, "three ranks");

  const tileoverlap::HostAllGather gather = tileoverlap::make_mpi_all_gather(MPI_COMM_WORLD);
  constexpr size_t kLong = size_t{8} << 20;
  for (const size_t unit : {size_t{0}, size_t{1}, size_t{1000}, kLong}) {
    const auto all = gather(message(rank, unit * static_cast<size_t>(rank)));
    expect(all.size() == 3, "a message of each rank");
    for (int peer = 0; peer < world; ++peer) {
      expect(all[static_cast<size_t>(peer)] == message(peer, unit * static_cast<size_t>(peer)), "messages by rank");
    }
  }

  // A rank that does not come: the limit is named, now and by later calls.
  constexpr int64_t kLimitNs = 200'000'000;
  const tileoverlap::HostAllGather late = tileoverlap::make_mpi_all_gather(MPI_COMM_WORLD, kLimitNs);
  if (rank != 1) {
    for (int call = 0; call < 2; ++call) {
      std::string said;
      try {
        late({});
      } catch (const tileoverlap::Error& error) {
        said = error.what();
      }
      expect(said.find("waited 0.2") != std::string::npos, "the limit in the error");
      expect(said.find("rank " + std::to_string(rank)) == 0, "the rank in the error");
    }
  }
  MPI_Barrier(MPI_COMM_WORLD);
  if (failures != 0) MPI_Abort(MPI_COMM_WORLD, 1);
  MPI_Barrier(MPI_COMM_WORLD);
  if (rank == 0) std::printf("all well\n");
  MPI_Finalize();
}
