#pragma once
// Memory that somebody else has allocated and mapped: torch symmetric memory, CUDA IPC, shared memory, plain pointers.

#include <dlpack/dlpack.h>

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "tileoverlap/transport/transport.hpp"

namespace tileoverlap {

// Gives this rank's message to all ranks and returns all ranks' messages, by rank; messages may differ in length. Waits
// for the others, with a limit of its own; what it throws ends the host exchange of this transport for good. Called by
// one thread at a time, but not always the same one, and never while a lock is held that letting go of memory takes.
// torch.distributed, MPI and the like: over a process group of its own, since calls from elsewhere would get between.
using HostAllGather = std::function<std::vector<std::vector<std::byte>>(std::span<const std::byte> mine)>;

// One rank's view of all ranks' regions. All regions are of `bytes` bytes and must have been zeroed before any rank
// uses its transport.
struct MappedOptions {
  int32_t rank = 0, world = 1;
  DLDevice device = {kDLCPU, 0};  // where this rank's region lies
  // [world]: each rank's region as mapped into this process, at multiples of 256; bases[rank] is this rank's own.
  std::vector<void*> bases = {};
  size_t bytes = 0;               // of each region
  int32_t ranks_on_device = 1;    // see Transport
  HostAllGather all_gather = {};  // optional
  // Optional: zeroes part of this rank's own region, complete on return. Not asked for on the CPU.
  std::function<void(std::byte* memory, size_t bytes)> zero = {};
  std::shared_ptr<void> owner = {};  // optional: kept as long as the transport or anything made from it
};

// The transport of one rank. It makes no CUDA calls: `device` is only what others are told.
//
// allocate() takes the next bytes of the region, at multiples of 256, the same on all ranks since all allocate in the
// same order. Error with the numbers where there is no room.
//  - With all_gather it waits for the other ranks, and all of them get InvalidArgument where the terms or sizes differ.
//    Each rank then needs a thread or process of its own.
//  - Without it nothing is compared and nobody waits: terms that differ are for the executor to find.
// Memory that is let go is not used again, with one exception: once all ranks have let go of everything, as they find
// out in allocate(), they start over at the front. This needs all_gather, and a way to zero what was used: the CPU's
// memory is zeroed by the transport, other devices' by `zero`. A rank must let go of memory only when its work on the
// peers' memory has completed.
//
// Exchanges work over all_gather; without it their calls throw Error. Over it, post() waits for the others, too, and
// limits and `cancelled` hold only for the waits outside of it.
//
// Errors: InvalidArgument unless world >= 1, rank in 0..world - 1, ranks_on_device in 1..world, bytes > 0, and there
// are `world` bases that are not null, multiples of 256 and `bytes` or more apart.
TILEOVERLAP_API std::shared_ptr<Transport> make_mapped_transport(const MappedOptions& options);

}  // namespace tileoverlap
