#include "transport/region_transport.hpp"

#include <algorithm>
#include <cstring>
#include <exception>
#include <mutex>
#include <utility>

#include "core/text.hpp"
#include "tileoverlap/core/env.hpp"
#include "transport/device_text.hpp"
#include "transport/same_terms.hpp"

namespace tileoverlap {
namespace {

// Of a transport without all_gather.
class NoExchange final : public Exchange {
 public:
  explicit NoExchange(int32_t rank) : rank_(rank) {}
  void post(std::span<const std::byte>) override { refuse(); }
  std::vector<std::vector<std::byte>> all_gather(std::span<const std::byte>, int64_t,
                                                 const std::function<bool(int32_t)>&) override {
    refuse();
  }

 private:
  [[noreturn]] void refuse() const {
    throw Error(text("the transport of rank ", rank_, " has no host exchange: it was made without all_gather"));
  }

  int32_t rank_;
};

// What the ranks tell each other before they allocate; a RegionUse for each region and the terms follow.
struct Proposal {
  uint64_t bytes;
  uint64_t regions;
};

struct RegionUse {
  uint64_t bytes;      // of the region
  uint64_t used;       // of those, from the front
  uint64_t can_reuse;  // 1: this rank holds nothing of it and can zero what was used
};

struct Decoded {
  Proposal proposal;
  std::vector<RegionUse> uses;
  std::string terms;
};

std::vector<std::byte> encode(const Proposal& proposal, const std::vector<RegionUse>& uses, const std::string& terms) {
  std::vector<std::byte> message;
  const auto append = [&](const void* data, size_t bytes) {
    const auto* from = static_cast<const std::byte*>(data);
    message.insert(message.end(), from, from + bytes);
  };
  append(&proposal, sizeof(proposal));
  append(uses.data(), uses.size() * sizeof(RegionUse));
  append(terms.data(), terms.size());
  return message;
}

Decoded decode(std::span<const std::byte> message) {
  Decoded decoded{};
  const auto take = [&](void* to, size_t bytes) {
    if (message.size() < bytes) throw InternalError("a proposal for an allocation is cut off");
    if (bytes > 0) std::memcpy(to, message.data(), bytes);  // of nothing even the address may be null
    message = message.subspan(bytes);
  };
  take(&decoded.proposal, sizeof(decoded.proposal));
  if (decoded.proposal.regions > message.size() / sizeof(RegionUse)) {
    throw InternalError("a proposal for an allocation is cut off");
  }
  decoded.uses.resize(decoded.proposal.regions);
  take(decoded.uses.data(), decoded.uses.size() * sizeof(RegionUse));
  decoded.terms.assign(reinterpret_cast<const char*>(message.data()), message.size());
  return decoded;
}

// A region and how much of it is taken.
struct TakenRegion {
  Region region;
  size_t used = 0;   // from the front
  int64_t held = 0;  // allocations
};

// One rank's regions.
class Regions : public std::enable_shared_from_this<Regions> {
 public:
  explicit Regions(RegionSource source) : source_(std::move(source)) {
    for (Region& region : source_.regions) taken_.push_back(std::make_shared<TakenRegion>(TakenRegion{region}));
    if (source_.hub != nullptr) agreement_ = source_.hub->open(ExchangeKind::kAgreement);
  }

  const RegionSource& source() const { return source_; }
  std::shared_ptr<SymmetricMemory> allocate(const std::string& terms, size_t bytes);
  std::unique_ptr<Exchange> open(ExchangeKind kind) {
    if (source_.hub == nullptr) return std::make_unique<NoExchange>(source_.rank);
    return source_.hub->open(kind);
  }
  void let_go(TakenRegion& region) {
    const std::scoped_lock lock(mutex_);
    --region.held;
    if (source_.held != nullptr) --*source_.held;
  }
  size_t bytes() {
    const std::scoped_lock lock(mutex_);
    size_t total = 0;
    for (const auto& taken : taken_) total += taken->region.bytes;
    return total;
  }

 private:
  using Free = std::vector<std::shared_ptr<TakenRegion>>;
  std::vector<RegionUse> uses();
  Free agree(const std::string& terms, size_t bytes);
  void start_over(const Free& regions);
  void make_room(size_t bytes, const Free& regions);
  std::shared_ptr<TakenRegion> with_room(size_t bytes);

  RegionSource source_;
  std::unique_ptr<Exchange> agreement_;              // null: no hub
  std::mutex allocate_mutex_;                        // one allocation at a time; held during all_gather
  std::mutex mutex_;                                 // for what follows; never held while foreign code runs
  std::vector<std::shared_ptr<TakenRegion>> taken_;  // in the same order on all ranks
};

class RegionMemory final : public SymmetricMemory {
 public:
  RegionMemory(std::shared_ptr<Regions> regions, std::shared_ptr<TakenRegion> region, size_t offset, size_t bytes)
      : regions_(std::move(regions)),
        region_(std::move(region)),
        offset_(offset),
        bytes_(bytes),
        exchange_(regions_->open(ExchangeKind::kMemory)) {}
  ~RegionMemory() override { regions_->let_go(*region_); }
  std::byte* local() const override { return region_->region.own + offset_; }
  std::byte* peer(int32_t rank) const override {
    std::byte* const base = region_->region.bases[static_cast<size_t>(rank)];
    return base == nullptr ? nullptr : base + offset_;
  }
  size_t bytes() const override { return bytes_; }
  Exchange& exchange() const override { return *exchange_; }

 private:
  const std::shared_ptr<Regions> regions_;
  const std::shared_ptr<TakenRegion> region_;
  const size_t offset_, bytes_;
  const std::unique_ptr<Exchange> exchange_;
};

std::shared_ptr<SymmetricMemory> Regions::allocate(const std::string& terms, size_t bytes) {
  const std::scoped_lock one_at_a_time(allocate_mutex_);
  if (source_.check_usable) source_.check_usable();
  if (source_.hub != nullptr) {
    const Free free = agree(terms, bytes);
    start_over(free);
    if (source_.grow && with_room(bytes) == nullptr) make_room(bytes, free);
  }
  const std::shared_ptr<TakenRegion> region = with_room(bytes);
  const std::scoped_lock lock(mutex_);
  if (region == nullptr) {
    const size_t left = taken_.empty() ? 0 : taken_.back()->region.bytes - taken_.back()->used;
    throw Error(text("rank ", source_.rank, " cannot allocate ", bytes, " bytes of mapped memory: ", left,
                     " bytes are left of a region of ", taken_.empty() ? 0 : taken_.back()->region.bytes));
  }
  const size_t begin = region->used, left = region->region.bytes - begin;
  const size_t padding = (kRegionAlignment - bytes % kRegionAlignment) % kRegionAlignment;
  region->used += bytes + std::min(padding, left - bytes);
  ++region->held;
  if (source_.held != nullptr) ++*source_.held;
  return std::make_shared<RegionMemory>(shared_from_this(), region, begin, bytes);
}

std::vector<RegionUse> Regions::uses() {
  const bool can_zero = source_.device.device_type == kDLCPU || source_.zero;
  const std::scoped_lock lock(mutex_);
  std::vector<RegionUse> uses;
  for (const auto& taken : taken_) {
    uses.push_back({.bytes = taken->region.bytes, .used = taken->used, .can_reuse = taken->held == 0 && can_zero});
  }
  return uses;
}

// Every rank sees all proposals, so all ranks come to the same end. Returns the regions that nobody holds.
Regions::Free Regions::agree(const std::string& terms, size_t bytes) {
  const std::vector<RegionUse> mine = uses();
  const auto messages =
      agreement_->all_gather(encode({.bytes = bytes, .regions = mine.size()}, mine, terms), Env::read().timeout_ns);
  std::vector<bool> can_reuse(mine.size(), true);
  for (int32_t rank = 0; rank < source_.world; ++rank) {
    const auto [proposal, theirs, their_terms] = decode(messages[static_cast<size_t>(rank)]);
    check_same_terms({.rank = source_.rank, .terms = terms, .bytes = bytes},
                     {.rank = rank, .terms = their_terms, .bytes = proposal.bytes});
    for (size_t i = 0; i < std::max(mine.size(), theirs.size()); ++i) {
      const RegionUse here = i < mine.size() ? mine[i] : RegionUse{},
                      there = i < theirs.size() ? theirs[i] : RegionUse{};
      if (here.bytes != there.bytes || here.used != there.used) {
        throw InvalidArgument(text("all ranks must map regions of one size and allocate from them in the same order: ",
                                   here.used, " of ", here.bytes, " bytes used (rank ", source_.rank, ") against ",
                                   there.used, " of ", there.bytes, " (rank ", rank, ")"));
      }
      can_reuse[i] = can_reuse[i] && there.can_reuse != 0;
    }
  }
  const std::scoped_lock lock(mutex_);
  Free free;
  for (size_t i = 0; i < taken_.size(); ++i) {
    if (can_reuse[i]) free.push_back(taken_[i]);
  }
  return free;
}

// Nobody holds anything of these regions, so nobody writes: each rank zeroes its own, and nobody goes on before all
// have.
void Regions::start_over(const Free& regions) {
  Free used;
  std::copy_if(regions.begin(), regions.end(), std::back_inserter(used),
               [](const auto& taken) { return taken->used > 0; });
  if (used.empty()) return;
  std::exception_ptr failed;
  try {
    for (const auto& taken : used) {
      if (source_.device.device_type == kDLCPU) {
        std::memset(taken->region.own, 0, taken->used);
      } else {
        source_.zero(taken->region.own, taken->used);
      }
    }
  } catch (...) {
    failed = std::current_exception();  // the others wait for this rank: they are to know
  }
  const std::byte answer[] = {std::byte{failed == nullptr}};
  const auto answers = agreement_->all_gather(answer, Env::read().timeout_ns);
  if (failed) std::rethrow_exception(failed);
  for (int32_t rank = 0; rank < source_.world; ++rank) {
    if (answers[static_cast<size_t>(rank)] != std::vector(1, std::byte{1})) {
      throw Error(text("rank ", rank, " cannot zero its region, so that memory cannot be used again"));
    }
  }
  const std::scoped_lock lock(mutex_);
  for (const auto& taken : used) taken->used = 0;
}

// `regions`, which nobody holds, are too small: they make room for one that is not.
void Regions::make_room(size_t bytes, const Free& regions) {
  if (source_.shrink) {
    for (const auto& taken : regions) source_.shrink(taken->region);
    const std::scoped_lock lock(mutex_);
    std::erase_if(taken_,
                  [&](const auto& taken) { return std::find(regions.begin(), regions.end(), taken) != regions.end(); });
  }
  auto grown = std::make_shared<TakenRegion>(TakenRegion{source_.grow(bytes)});
  const std::scoped_lock lock(mutex_);
  taken_.push_back(std::move(grown));
}

std::shared_ptr<TakenRegion> Regions::with_room(size_t bytes) {
  const std::scoped_lock lock(mutex_);
  for (const auto& taken : taken_) {
    if (bytes <= taken->region.bytes - taken->used) return taken;
  }
  return nullptr;
}

class RegionTransport final : public Transport {
 public:
  explicit RegionTransport(RegionSource source) : regions_(std::make_shared<Regions>(std::move(source))) {}
  int32_t world() const override { return regions_->source().world; }
  int32_t rank() const override { return regions_->source().rank; }
  DLDevice device() const override { return regions_->source().device; }
  int32_t ranks_on_device() const override { return regions_->source().ranks_on_device; }
  std::shared_ptr<SymmetricMemory> allocate(const std::string& terms, size_t bytes) override {
    return regions_->allocate(terms, bytes);
  }
  std::unique_ptr<Exchange> open_exchange() override { return regions_->open(ExchangeKind::kOpened); }
  const RemoteLink* remote_link() const override {
    const std::optional<RemoteLink>& link = regions_->source().remote_link;
    return link.has_value() ? &*link : nullptr;
  }
  std::string repr() const override {
    return text(regions_->source().name, "(rank=", rank(), " of ", world(), ", ", device_text(device()), ", ",
                regions_->bytes(), " bytes)");
  }

 private:
  const std::shared_ptr<Regions> regions_;
};

}  // namespace

std::shared_ptr<Transport> make_region_transport(RegionSource source) {
  return std::make_shared<RegionTransport>(std::move(source));
}

}  // namespace tileoverlap
