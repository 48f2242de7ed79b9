#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <utility>

#include "core/cuda_objects.hpp"
#include "core/device_query.hpp"
#include "core/text.hpp"
#include "tileoverlap/core/env.hpp"
#include "tileoverlap/transport/nvshmem.hpp"
#include "transport/gather_hub.hpp"
#include "transport/nvshmem/hello.hpp"
#include "transport/nvshmem/load_plugin.hpp"
#include "transport/region_transport.hpp"

namespace tileoverlap {
namespace {

void check_options(const NvshmemOptions& options) {
  if (options.world < 1) throw InvalidArgument(text("world must be at least 1, got ", options.world));
  if (options.rank < 0 || options.rank >= options.world) {
    throw InvalidArgument(text("rank must lie in ", range_text(0, options.world), ", got ", options.rank));
  }
  if (options.device < 0) throw InvalidArgument(text("device must be at least 0, got ", options.device));
  if (options.ranks_on_device < 0 || options.ranks_on_device > options.world) {
    throw InvalidArgument(text("ranks_on_device must lie in ", range_text(0, options.world + 1), ", got ",
                               options.ranks_on_device, " (0: found out)"));
  }
  if (!options.all_gather) {
    throw InvalidArgument("all_gather is missing: ranks in processes need it to find each other");
  }
}

std::array<std::byte, 16> uuid_of(int32_t device) {
  int count = 0;
  cuda_check(cudaGetDeviceCount(&count), "no CUDA device can be used");
  if (device >= count) {
    throw Error(text("device must lie in ", range_text(0, count), ", got ", device, ": this process sees ", count,
                     count == 1 ? " device" : " devices"));
  }
  cudaDeviceProp properties;
  cuda_check(cudaGetDeviceProperties(&properties, device), text("reading the properties of cuda:", device));
  std::array<std::byte, 16> uuid;
  static_assert(sizeof(properties.uuid) == sizeof(uuid));
  std::memcpy(uuid.data(), &properties.uuid, sizeof(uuid));
  return uuid;
}

// NVSHMEM's start allocates, which CUDA forbids while a graph is being captured.
void refuse_capture(int32_t device) {
  const DeviceGuard guard(device);
  void* memory = nullptr;
  const cudaError_t status = cudaMalloc(&memory, 1);
  if (status == cudaErrorStreamCaptureUnsupported || status == cudaErrorStreamCaptureImplicit) {
    (void)cudaGetLastError();
    throw InvalidArgument("NVSHMEM cannot be started while a graph is being captured: start it before");
  }
  cuda_check(status, text("cudaMalloc on cuda:", device));
  cuda_ignore(cudaFree(memory));
}

// A rank whose processors MPS has limited sees only its share of them, which is not to be divided once more.
int32_t ranks_on_share(int32_t device, int32_t ranks) {
  const int32_t mps = device_attribute(cudaDevAttrMpsEnabled, device);
  const char* value = std::getenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE");
  const double percent = mps == 0 || value == nullptr ? 100 : std::clamp(std::atof(value), 1.0, 100.0);
  return std::max(1, static_cast<int32_t>(std::ceil(ranks * percent / 100)));
}

void zero_now(int32_t device, std::byte* memory, size_t bytes) {
  const Stream stream(device);
  const DeviceGuard guard(device);
  cuda_check(cudaMemsetAsync(memory, 0, bytes, stream.get()), text("cudaMemsetAsync of ", bytes, " bytes"));
  stream.synchronize();
}

class StartedWorld final : public NvshmemWorld, public std::enable_shared_from_this<StartedWorld> {
 public:
  StartedWorld(const NvshmemOptions& options, const NvshmemPlugin& plugin, bool own, std::shared_ptr<GatherHub> hub,
               std::unique_ptr<Exchange> agreement)
      : options_(options), plugin_(plugin), own_(own), hub_(std::move(hub)), agreement_(std::move(agreement)) {}

  void find_ranks(const std::vector<Hello>& hellos);
  bool is_closed() {
    const std::scoped_lock lock(mutex_);
    return closed_;
  }

  int32_t rank() const override { return options_.rank; }
  int32_t world() const override { return options_.world; }
  std::shared_ptr<Transport> transport() override;
  std::shared_ptr<Transport> group(const std::vector<int32_t>& ranks, size_t bytes,
                                   const HostAllGather& all_gather) override;
  void close() override;
  std::string repr() const override {
    return text("NvshmemWorld(rank=", rank(), " of ", world(), ", cuda:", options_.device, ", NVSHMEM ",
                version_text(plugin_.host_version()), ", ", is_remote_ ? "puts" : "all peers mapped",
                closed_ ? ", closed" : "", ")");
  }

 private:
  std::vector<std::vector<std::byte>> gather(const std::string& mine) const {
    const auto* data = reinterpret_cast<const std::byte*>(mine.data());
    return agreement_->all_gather({data, mine.size()}, Env::read().timeout_ns);
  }
  void check_open() const {
    if (closed_) throw Error("this NVSHMEM world has been closed");
  }
  Region make_region(const std::vector<int32_t>& ranks, size_t bytes);
  RegionSource source(const std::vector<int32_t>& ranks, const std::shared_ptr<GatherHub>& hub);
  std::vector<int32_t> all_ranks() const;

  const NvshmemOptions options_;
  const NvshmemPlugin& plugin_;
  const std::shared_ptr<std::atomic<int64_t>> held_ = std::make_shared<std::atomic<int64_t>>(0);  // allocations
  const bool own_;  // NVSHMEM was started here, so it is ended here
  const std::shared_ptr<GatherHub> hub_;
  const std::unique_ptr<Exchange> agreement_;
  std::vector<int32_t> pes_;
  std::vector<bool> mapped_;  // by rank
  bool is_remote_ = false;    // some rank does not map some other
  int32_t ranks_on_device_ = 1;
  std::mutex mutex_;  // for what follows, and for NVSHMEM, whose calls must not cross
  bool closed_ = false;
};

// Collective.
void StartedWorld::find_ranks(const std::vector<Hello>& hellos) {
  const auto numbers = gather(std::to_string(plugin_.my_pe()));
  for (const auto& number : numbers) {
    pes_.push_back(std::stoi(std::string(reinterpret_cast<const char*>(number.data()), number.size())));
  }
  ranks_on_device_ = options_.ranks_on_device > 0 ? options_.ranks_on_device
                                                  : ranks_on_share(options_.device, ranks_on_gpu_of(rank(), hellos));
  void* probe = plugin_.allocate(1);
  if (probe == nullptr) throw Error(text("rank ", rank(), " cannot allocate from NVSHMEM's symmetric heap"));
  bool all_mapped = true;
  for (int32_t peer = 0; peer < world(); ++peer) {
    const bool mapped = plugin_.mapped(probe, pes_[static_cast<size_t>(peer)]) != nullptr;
    mapped_.push_back(peer == rank() || (mapped && options_.map_peers));
    all_mapped = all_mapped && mapped_.back();
  }
  plugin_.free(probe);
  // All take one way, as all lay out their memory alike.
  for (const auto& answer : gather(all_mapped ? "mapped" : "remote")) {
    is_remote_ = is_remote_ || answer[0] == std::byte{'r'};
  }
}

std::vector<int32_t> StartedWorld::all_ranks() const {
  std::vector<int32_t> ranks(static_cast<size_t>(world()));
  for (size_t rank = 0; rank < ranks.size(); ++rank) ranks[rank] = static_cast<int32_t>(rank);
  return ranks;
}

// Collective over NVSHMEM's world. Zeroed.
Region StartedWorld::make_region(const std::vector<int32_t>& ranks, size_t bytes) {
  constexpr size_t kPage = size_t{2} << 20;
  const DeviceGuard guard(options_.device);
  Region region{.bases = {}, .own = nullptr, .bytes = (bytes + kPage - 1) / kPage * kPage};
  region.own = static_cast<std::byte*>(plugin_.allocate(region.bytes));
  if (region.own == nullptr) {
    const char* size = std::getenv("NVSHMEM_SYMMETRIC_SIZE");
    throw Error(text("rank ", rank(), " cannot allocate ", region.bytes, " bytes from NVSHMEM's symmetric heap, whose ",
                     "size NVSHMEM_SYMMETRIC_SIZE (", size == nullptr ? "not set" : size, ") says"));
  }
  for (const int32_t peer : ranks) {
    void* base =
        mapped_[static_cast<size_t>(peer)] ? plugin_.mapped(region.own, pes_[static_cast<size_t>(peer)]) : nullptr;
    region.bases.push_back(static_cast<std::byte*>(base));
  }
  zero_now(options_.device, region.own, region.bytes);
  plugin_.barrier();
  return region;
}

RegionSource StartedWorld::source(const std::vector<int32_t>& ranks, const std::shared_ptr<GatherHub>& hub) {
  RegionSource source{
      .name = "NvshmemTransport",
      .rank = static_cast<int32_t>(std::find(ranks.begin(), ranks.end(), rank()) - ranks.begin()),
      .world = static_cast<int32_t>(ranks.size()),
      .device = {kDLCUDA, options_.device},
      .ranks_on_device = std::min(ranks_on_device_, static_cast<int32_t>(ranks.size())),
      .hub = hub,
      .zero = [device = options_.device](std::byte* memory, size_t bytes) { zero_now(device, memory, bytes); },
      .regions = {}};
  if (is_remote_) {
    source.remote_link = RemoteLink{.kernels = plugin_.kernels, .pes = {}};
    for (const int32_t peer : ranks) source.remote_link->pes.push_back(pes_[static_cast<size_t>(peer)]);
  }
  source.check_usable = [this] {
    const std::scoped_lock held(mutex_);
    check_open();
  };
  source.held = held_;
  source.owner = shared_from_this();
  return source;
}

std::shared_ptr<Transport> StartedWorld::transport() {
  const std::scoped_lock lock(mutex_);
  check_open();
  RegionSource regions = source(all_ranks(), hub_);
  // Not a shared pointer: the regions' owner is one already.
  regions.grow = [this](size_t bytes) {
    const std::scoped_lock held(mutex_);
    check_open();
    return make_region(all_ranks(), bytes);
  };
  regions.shrink = [this](const Region& region) {
    const std::scoped_lock held(mutex_);
    check_open();
    plugin_.free(region.own);
  };
  return make_region_transport(std::move(regions));
}

std::shared_ptr<Transport> StartedWorld::group(const std::vector<int32_t>& ranks, size_t bytes,
                                               const HostAllGather& all_gather) {
  const std::scoped_lock lock(mutex_);
  check_open();
  std::string why;
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i] < 0 || ranks[i] >= world()) {
      why = text("ranks[", i, "] must lie in ", range_text(0, world()), ", got ", ranks[i]);
    } else if (std::count(ranks.begin(), ranks.end(), ranks[i]) > 1) {
      why = text("ranks names rank ", ranks[i], " twice");
    }
  }
  if (std::find(ranks.begin(), ranks.end(), rank()) == ranks.end()) why = text("ranks does not name rank ", rank());
  if (!all_gather) why = "all_gather is missing: it is over the group";
  if (bytes == 0) why = "bytes must be positive, got 0: a group without memory";
  // All ranks hear of it, so that none waits for one that has refused.
  const auto answers = gather(why.empty() ? std::to_string(bytes) : text("! ", why));
  if (!why.empty()) throw InvalidArgument(why);
  for (size_t peer = 0; peer < answers.size(); ++peer) {
    const std::string theirs(reinterpret_cast<const char*>(answers[peer].data()), answers[peer].size());
    if (theirs[0] == '!') throw CallRefused(text("rank ", peer, " refused the group: ", theirs.substr(2)));
    if (theirs != std::to_string(bytes)) {
      throw InvalidArgument(text("ranks were given different bytes for a group: ", bytes, " (rank ", rank(),
                                 ") against ", theirs, " (rank ", peer, ")"));
    }
  }
  const auto at = std::find(ranks.begin(), ranks.end(), rank()) - ranks.begin();
  RegionSource regions = source(
      ranks, std::make_shared<GatherHub>(static_cast<int32_t>(at), static_cast<int32_t>(ranks.size()), all_gather));
  regions.regions.push_back(make_region(ranks, bytes));
  return make_region_transport(std::move(regions));
}

void StartedWorld::close() {
  const std::scoped_lock lock(mutex_);
  if (closed_) return;
  const bool used = *held_ > 0;
  bool all_free = true;
  int32_t user = -1;
  const auto answers = gather(used ? "used" : "free");  // throws where a rank is missing
  for (size_t peer = 0; peer < answers.size(); ++peer) {
    if (answers[peer].size() == 4 && answers[peer][0] == std::byte{'f'}) continue;
    all_free = false;
    if (user < 0) user = static_cast<int32_t>(peer);
  }
  if (!all_free) {
    throw Error(text("NVSHMEM cannot be ended: rank ", user, " still holds a session or layer made from it"));
  }
  closed_ = true;
  if (own_) plugin_.finish();
}

// The world that this process has open, if any: NVSHMEM is there once in a process.
std::mutex open_mutex;
std::weak_ptr<StartedWorld> open_world;

std::shared_ptr<NvshmemWorld> find_open_world(const NvshmemOptions& options) {
  const std::scoped_lock lock(open_mutex);
  const std::shared_ptr<StartedWorld> open = open_world.lock();
  if (open == nullptr || open->is_closed()) return nullptr;
  if (open->rank() == options.rank && open->world() == options.world) return open;
  throw InvalidArgument(text("this process has NVSHMEM open as rank ", open->rank(), " of ", open->world(),
                             " and cannot open it as rank ", options.rank, " of ", options.world,
                             ": close the former first"));
}

}  // namespace

std::shared_ptr<NvshmemWorld> start_nvshmem(const NvshmemOptions& options) {
  check_options(options);
  if (auto open = find_open_world(options)) return open;
  Hello mine{.rank = options.rank, .world = options.world};
  const NvshmemPlugin* plugin = nullptr;
  std::string failure;
  bool captured = false;
  try {
    mine.gpu = uuid_of(options.device);
    refuse_capture(options.device);
    plugin = &load_nvshmem_plugin(options.libraries);
    mine.built = plugin->built;
    mine.host = plugin->host_version();
    mine.started = plugin->is_started();
    if (mine.started != 0) mine.pes = plugin->pes();
    if (mine.started == 0 && options.rank == 0) {
      if (plugin->unique_id_bytes > mine.unique_id.size()) throw InternalError("NVSHMEM's unique id has grown");
      if (plugin->make_unique_id(mine.unique_id.data()) != 0) throw Error("it makes no unique id");
    }
  } catch (const InvalidArgument& error) {
    failure = error.what();
    captured = true;
  } catch (const Error& error) {
    failure = error.what();
  }
  failure.copy(mine.failure.data(), mine.failure.size() - 1);
  const auto hub = std::make_shared<GatherHub>(options.rank, options.world, options.all_gather);
  auto agreement = hub->open(ExchangeKind::kAgreement);
  const auto all = agreement->all_gather(encode(mine), Env::read().timeout_ns);
  if (captured) throw InvalidArgument(failure);
  if (!failure.empty()) throw Error(failure);
  const std::vector<Hello> hellos = check_hellos(mine, all);

  const DeviceGuard guard(options.device);
  const int32_t status =
      plugin->start(options.rank, options.world, mine.started != 0 ? nullptr : hellos[0].unique_id.data());
  if (status == NvshmemPlugin::kNoWayToPeers) {
    throw Error(text("NVSHMEM finds no way from rank ", options.rank, " to its peers' memory (of ", options.world,
                     " ranks): neither peer access between their GPUs nor a network; NVSHMEM_DEBUG=INFO says more"));
  }
  if (status != 0) throw Error(text("NVSHMEM does not start on rank ", options.rank, ": status ", status));
  auto world = std::make_shared<StartedWorld>(options, *plugin, mine.started == 0, hub, std::move(agreement));
  world->find_ranks(hellos);
  const std::scoped_lock lock(open_mutex);
  open_world = world;
  return world;
}

}  // namespace tileoverlap
