#include "transport/nvshmem/hello.hpp"

#include <algorithm>
#include <cstring>

#include "core/text.hpp"
#include "tileoverlap/core/error.hpp"
#include "transport/nvshmem/load_plugin.hpp"

namespace tileoverlap {

std::vector<std::byte> encode(const Hello& hello) {
  std::vector<std::byte> bytes(sizeof(hello));
  std::memcpy(bytes.data(), &hello, sizeof(hello));
  return bytes;
}

std::vector<Hello> check_hellos(const Hello& mine, const std::vector<std::vector<std::byte>>& all) {
  if (all.size() != static_cast<size_t>(mine.world)) {
    throw InvalidArgument(
        text("rank ", mine.rank, " was given world = ", mine.world, ", but all_gather brings ", all.size(), " ranks"));
  }
  std::vector<Hello> hellos;
  for (size_t at = 0; at < all.size(); ++at) {
    if (all[at].size() != sizeof(Hello)) {
      throw InvalidArgument(text("rank ", at, " runs another version of this library than rank ", mine.rank));
    }
    Hello hello;
    std::memcpy(&hello, all[at].data(), sizeof(hello));
    hellos.push_back(hello);
  }
  for (size_t at = 0; at < hellos.size(); ++at) {
    const Hello& hello = hellos[at];
    if (hello.world != mine.world) {
      throw InvalidArgument(text("ranks were given different worlds: ", mine.world, " (rank ", mine.rank, ") against ",
                                 hello.world, " (rank ", hello.rank, ")"));
    }
    if (hello.rank != static_cast<int32_t>(at)) {
      throw InvalidArgument(
          text("rank ", hello.rank, " is number ", at, " of all_gather: ranks must be numbered alike"));
    }
  }
  for (const Hello& hello : hellos) {
    if (hello.failure[0] != '\0')
      throw Error(text("rank ", hello.rank, " cannot start NVSHMEM: ", hello.failure.data()));
  }
  for (const Hello& hello : hellos) {
    const std::string here = text(version_text(mine.built), " and ", version_text(mine.host));
    const std::string there = text(version_text(hello.built), " and ", version_text(hello.host));
    if (here != there) {
      throw InvalidArgument(text("ranks must have one version of NVSHMEM: built with and running ", here, " (rank ",
                                 mine.rank, ") against ", there, " (rank ", hello.rank, ")"));
    }
    if (hello.started != mine.started) {
      throw InvalidArgument(text("NVSHMEM must have been started by all ranks or by none: it was ",
                                 mine.started != 0 ? "started" : "not started", " by rank ", mine.rank, " and ",
                                 hello.started != 0 ? "started" : "not started", " by rank ", hello.rank));
    }
    if (hello.started != 0 && (hello.pes != mine.pes || hello.pes < hello.world)) {
      throw InvalidArgument(text("NVSHMEM was started before with ", hello.pes, " PEs on rank ", hello.rank, " and ",
                                 mine.pes, " on rank ", mine.rank, ", but a world of ", hello.world,
                                 " ranks is asked for"));
    }
  }
  return hellos;
}

int32_t ranks_on_gpu_of(int32_t rank, const std::vector<Hello>& hellos) {
  const auto& gpu = hellos[static_cast<size_t>(rank)].gpu;
  return static_cast<int32_t>(
      std::count_if(hellos.begin(), hellos.end(), [&](const Hello& hello) { return hello.gpu == gpu; }));
}

}  // namespace tileoverlap
