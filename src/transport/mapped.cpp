#include "tileoverlap/transport/mapped.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "core/text.hpp"
#include "transport/region_transport.hpp"

namespace tileoverlap {
namespace {

void check_bases(const MappedOptions& options) {
  if (options.bases.size() != static_cast<size_t>(options.world)) {
    throw InvalidArgument(text("bases must name ", options.world, " regions, one a rank, got ", options.bases.size()));
  }
  std::vector<std::pair<uintptr_t, size_t>> by_address;
  for (size_t rank = 0; rank < options.bases.size(); ++rank) {
    if (options.bases[rank] == nullptr) throw InvalidArgument(text("the base of rank ", rank, " is null"));
    const auto address = reinterpret_cast<uintptr_t>(options.bases[rank]);
    if (address % kRegionAlignment != 0) {
      throw InvalidArgument(text("the base of rank ", rank, " must be a multiple of ", kRegionAlignment, ", got ",
                                 options.bases[rank], ", which is ", address % kRegionAlignment, " bytes past one"));
    }
    by_address.emplace_back(address, rank);
  }
  std::sort(by_address.begin(), by_address.end());
  for (size_t i = 1; i < by_address.size(); ++i) {
    const auto& [begin, rank] = by_address[i - 1];
    const auto& [next, other] = by_address[i];
    if (next - begin >= options.bytes) continue;
    throw InvalidArgument(text("the regions of ranks ", std::min(rank, other), " and ", std::max(rank, other),
                               " overlap: ", next - begin, " bytes lie between their bases, regions have ",
                               options.bytes));
  }
}

}  // namespace

std::shared_ptr<Transport> make_mapped_transport(const MappedOptions& options) {
  if (options.world < 1) throw InvalidArgument(text("world must be at least 1, got ", options.world));
  if (options.rank < 0 || options.rank >= options.world) {
    throw InvalidArgument(text("rank must lie in ", range_text(0, options.world), ", got ", options.rank));
  }
  if (options.ranks_on_device < 1 || options.ranks_on_device > options.world) {
    throw InvalidArgument(
        text("ranks_on_device must lie in ", range_text(1, options.world + 1), ", got ", options.ranks_on_device));
  }
  if (options.bytes == 0) throw InvalidArgument("bytes must be positive, got 0: a region without memory");
  check_bases(options);
  Region region{.bases = {}, .own = nullptr, .bytes = options.bytes};
  for (void* base : options.bases) region.bases.push_back(static_cast<std::byte*>(base));
  region.own = region.bases[static_cast<size_t>(options.rank)];
  std::shared_ptr<GatherHub> hub;
  if (options.all_gather) hub = std::make_shared<GatherHub>(options.rank, options.world, options.all_gather);
  return make_region_transport({.name = "MappedTransport",
                                .rank = options.rank,
                                .world = options.world,
                                .device = options.device,
                                .ranks_on_device = options.ranks_on_device,
                                .hub = hub,
                                .zero = options.zero,
                                .regions = {region},
                                .owner = options.owner});
}

}  // namespace tileoverlap
