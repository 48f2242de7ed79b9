#pragma once
// A host all-gather over TCP for ranks in plain processes: all it needs is an address.

#include <cstdint>
#include <functional>
#include <string>

#include "tileoverlap/transport/mapped.hpp"

namespace tileoverlap {

// Most bytes of one rank's message: it is for addresses, names and counts.
inline constexpr int64_t kMostMessageBytes = int64_t{1} << 28;

// One rank's; world, address and limit are the same on all ranks.
struct TcpGatherOptions {
  int32_t rank = 0, world = 1;
  // "HOST:PORT" ("[::1]:29500" for numbers of IPv6): rank 0 listens there, the others connect.
  // "file:PATH", on a disk that all ranks see: rank 0 listens at a port that the system chooses and writes
  // "its host name:port" and a number drawn for this run into the file; it removes the file when all ranks are there.
  // A file that an earlier run left behind is passed over.
  std::string address = {};
  int64_t limit_ns = 0;  // of each wait: until all ranks are there, and of each all-gather; 0: TILEOVERLAP_TIMEOUT_S
  // Optional: called about ten times a second while a rank waits. What it throws ends the wait and the all-gather.
  std::function<void()> interrupt = {};
};

// Waits until all ranks are there, in whatever order they come. All messages travel through rank 0; ranks trust each
// other and the network between them, and run on machines of one byte order.
//
// The function is what MappedOptions asks for, and thread safe. Its connections close with its last copy. What goes
// wrong is told to all ranks, by rank 0 while it is in a call, and raised again by every later call:
//  - WaitTimeout after `limit_ns`, naming the first rank that is missing (kConnection, kHostMessage);
//  - Error as soon as a rank's connection has closed, naming the rank: its process ended, or it let go of its function;
//  - InvalidArgument where the ranks name different worlds, two name the same rank, or a message is longer than
//    kMostMessageBytes;
//  - Error for something else at the address: a port in use on rank 0, an answer or a visitor that is no rank.
// Before any of this, InvalidArgument unless world >= 1, rank in 0..world - 1, limit_ns >= 0 and the address is one of
// the two. A world of one rank opens nothing and needs no address.
TILEOVERLAP_API HostAllGather make_tcp_all_gather(const TcpGatherOptions& options);

}  // namespace tileoverlap
