#pragma once
// One rank's transport over regions of memory that all ranks map or reach alike: sessions take their memory from the
// front of a region on.

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tileoverlap/transport/mapped.hpp"
#include "transport/gather_hub.hpp"
#include "transport/remote_link.hpp"

namespace tileoverlap {

// Of where regions begin, and of what is taken from them.
inline constexpr size_t kRegionAlignment = 256;

// Of all ranks, zeroed.
struct Region {
  std::vector<std::byte*> bases;  // [world]: as this process sees them; null where only the remote link reaches
  std::byte* own = nullptr;       // bases[rank]
  size_t bytes = 0;
};

// What regions come from. Functions throw Error; those marked collective are called by all ranks at the same point.
struct RegionSource {
  std::string name;  // "MappedTransport"
  int32_t rank = 0, world = 1;
  DLDevice device = {kDLCPU, 0};
  int32_t ranks_on_device = 1;
  std::shared_ptr<GatherHub> hub = {};                        // optional: all ranks' host exchanges
  std::function<void(std::byte* memory, size_t bytes)> zero;  // optional: complete on return
  std::vector<Region> regions = {};
  // Optional, with a hub: collective. Makes a region of `bytes` or more; takes back one that nobody holds.
  std::function<Region(size_t bytes)> grow = {};
  std::function<void(const Region& region)> shrink = {};
  std::optional<RemoteLink> remote_link = {};
  std::function<void()> check_usable = {};          // optional: throws where nothing may be allocated any more
  std::shared_ptr<std::atomic<int64_t>> held = {};  // optional: counts the allocations that somebody holds
  std::shared_ptr<void> owner = {};                 // kept as long as the transport or anything made from it
};

std::shared_ptr<Transport> make_region_transport(RegionSource source);

}  // namespace tileoverlap
