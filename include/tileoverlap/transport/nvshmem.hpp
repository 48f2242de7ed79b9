#pragma once
// Ranks in processes of their own, over NVSHMEM: on one GPU, on GPUs that reach each other, and over a network.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tileoverlap/transport/mapped.hpp"
#include "tileoverlap/transport/transport.hpp"

namespace tileoverlap {

struct NvshmemOptions {
  int32_t rank = 0, world = 1;              // of all processes that start NVSHMEM together
  int32_t device = 0;                       // this rank's GPU, as this process numbers them
  HostAllGather all_gather = {};            // over all ranks
  int32_t ranks_on_device = 0;              // see Transport; 0: found out
  bool map_peers = true;                    // false, for tests: NVSHMEM's puts for all peers, mapped or not
  std::vector<std::string> libraries = {};  // folders to look for libnvshmem_host.so.3 in, before the system's
};

// NVSHMEM in this process. One at a time; thread safe.
class TILEOVERLAP_API NvshmemWorld {
 public:
  virtual ~NvshmemWorld() = default;
  virtual int32_t rank() const = 0;
  virtual int32_t world() const = 0;
  // Over all ranks. Its allocate() waits for the other ranks, and takes more memory of NVSHMEM as it is needed.
  virtual std::shared_ptr<Transport> transport() = 0;
  // Over some ranks, in that order, this one among them. Collective: every rank of the world calls it at the same
  // point, each for its own group (a rank without peers for itself alone), all with the same `bytes`, which is what
  // the group's sessions may take together on each rank. `all_gather` is over the group.
  virtual std::shared_ptr<Transport> group(const std::vector<int32_t>& ranks, size_t bytes,
                                           const HostAllGather& all_gather) = 0;
  // Collective: ends NVSHMEM, if this world has started it, once all ranks are here; afterwards nothing made from the
  // world may be used. Again: nothing. Error, and NVSHMEM is left to the end of the process, where sessions or layers
  // still hold memory, and where a rank is missing.
  virtual void close() = 0;
  virtual std::string repr() const = 0;
};

// Collective. Loads NVSHMEM (the copy that this process has loaded already, else from NVSHMEM_ROOT, `libraries`, beside
// this library in Python's site-packages, the system) and starts it as rank `rank` of `world`; where the process has
// started NVSHMEM already, that world is used, whose numbers may differ; while a world made here is open, it is
// returned again, by itself and without the others. Ranks compare what they were given before anything is allocated.
//
// Errors: InvalidArgument where rank, world or device are out of range, all_gather is missing, this process has it open
// as another rank or of another world (naming both), what was started has fewer ranks, ranks were given different
// worlds, or a graph is being captured; Error where NVSHMEM cannot be loaded (naming where it was looked for), does not
// match the version this library was built with (naming both), or does not start, and on all ranks where one has
// failed; and where the library was built without NVSHMEM.
TILEOVERLAP_API std::shared_ptr<NvshmemWorld> start_nvshmem(const NvshmemOptions& options);

}  // namespace tileoverlap
