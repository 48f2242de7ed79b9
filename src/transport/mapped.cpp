#include "tileoverlap/transport/mapped.hpp"

#include <algorithm>
#include <cstring>
#include <exception>
#include <mutex>
#include <string>
#include <utility>

#include "core/text.hpp"
#include "tileoverlap/core/env.hpp"
#include "transport/device_text.hpp"
#include "transport/gather_hub.hpp"
#include "transport/same_terms.hpp"

namespace tileoverlap {
namespace {

constexpr size_t kAlignment = 256;

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
    throw Error(text("the mapped transport of rank ", rank_, " has no host exchange: it was made without all_gather"));
  }

  int32_t rank_;
};

// What the ranks tell each other before they allocate; the terms follow.
struct Proposal {
  uint64_t region_bytes, bytes;
  uint64_t used;       // of the region
  uint64_t can_reuse;  // 1: this rank holds nothing and can zero what it has used
};

std::vector<std::byte> encode(const Proposal& proposal, const std::string& terms) {
  std::vector<std::byte> message(sizeof(proposal) + terms.size());
  std::memcpy(message.data(), &proposal, sizeof(proposal));
  std::memcpy(message.data() + sizeof(proposal), terms.data(), terms.size());
  return message;
}

std::pair<Proposal, std::string> decode(std::span<const std::byte> message) {
  Proposal proposal{};
  if (message.size() < sizeof(proposal)) throw InternalError("a proposal of a mapped transport is cut off");
  std::memcpy(&proposal, message.data(), sizeof(proposal));
  const auto rest = message.subspan(sizeof(proposal));
  return {proposal, std::string(reinterpret_cast<const char*>(rest.data()), rest.size())};
}

// One rank's regions and how much of them is used.
class MappedRegions : public std::enable_shared_from_this<MappedRegions> {
 public:
  explicit MappedRegions(const MappedOptions& options) : options_(options) {
    if (!options_.all_gather) return;
    hub_ = std::make_shared<GatherHub>(options_.rank, options_.world, options_.all_gather);
    agreement_ = hub_->open(ExchangeKind::kAgreement);
  }

  const MappedOptions& options() const { return options_; }
  std::shared_ptr<SymmetricMemory> allocate(const std::string& terms, size_t bytes);
  std::unique_ptr<Exchange> open(ExchangeKind kind) {
    if (hub_ == nullptr) return std::make_unique<NoExchange>(options_.rank);
    return hub_->open(kind);
  }
  std::byte* at(int32_t rank, size_t offset) const {
    return static_cast<std::byte*>(options_.bases[static_cast<size_t>(rank)]) + offset;
  }
  void let_go() {
    const std::scoped_lock lock(mutex_);
    --held_;
  }

 private:
  bool can_zero() const { return options_.device.device_type == kDLCPU || options_.zero; }
  void agree(const std::string& terms, size_t bytes);
  void start_over();
  size_t take(size_t bytes);

  const MappedOptions options_;
  std::shared_ptr<GatherHub> hub_;  // null: no all_gather
  std::unique_ptr<Exchange> agreement_;
  std::mutex allocate_mutex_;  // one allocation at a time; held during all_gather
  std::mutex mutex_;           // for what follows; never held while foreign code runs
  size_t used_ = 0;            // of each region, from its front
  int64_t held_ = 0;           // allocations
};

class MappedMemory final : public SymmetricMemory {
 public:
  MappedMemory(std::shared_ptr<MappedRegions> regions, size_t offset, size_t bytes)
      : regions_(std::move(regions)),
        offset_(offset),
        bytes_(bytes),
        exchange_(regions_->open(ExchangeKind::kMemory)) {}
  ~MappedMemory() override { regions_->let_go(); }
  std::byte* local() const override { return peer(regions_->options().rank); }
  std::byte* peer(int32_t rank) const override { return regions_->at(rank, offset_); }
  size_t bytes() const override { return bytes_; }
  Exchange& exchange() const override { return *exchange_; }

 private:
  const std::shared_ptr<MappedRegions> regions_;
  const size_t offset_, bytes_;
  const std::unique_ptr<Exchange> exchange_;
};

std::shared_ptr<SymmetricMemory> MappedRegions::allocate(const std::string& terms, size_t bytes) {
  const std::scoped_lock one_at_a_time(allocate_mutex_);
  if (hub_ != nullptr) agree(terms, bytes);
  return std::make_shared<MappedMemory>(shared_from_this(), take(bytes), bytes);
}

// Every rank sees all proposals, so all ranks come to the same end.
void MappedRegions::agree(const std::string& terms, size_t bytes) {
  const int64_t limit_ns = Env::read().timeout_ns;
  Proposal mine{.region_bytes = options_.bytes, .bytes = bytes, .used = 0, .can_reuse = 0};
  {
    const std::scoped_lock lock(mutex_);
    mine.used = used_;
    mine.can_reuse = held_ == 0 && can_zero();
  }
  const auto messages = agreement_->all_gather(encode(mine, terms), limit_ns);
  bool all_can_reuse = mine.used > 0;
  for (int32_t rank = 0; rank < options_.world; ++rank) {
    const auto [theirs, their_terms] = decode(messages[static_cast<size_t>(rank)]);
    check_same_terms({.rank = options_.rank, .terms = terms, .bytes = bytes},
                     {.rank = rank, .terms = their_terms, .bytes = theirs.bytes});
    if (theirs.region_bytes != mine.region_bytes || theirs.used != mine.used) {
      throw InvalidArgument(text("all ranks must map regions of one size and allocate from them in the same order: ",
                                 mine.used, " of ", mine.region_bytes, " bytes used (rank ", options_.rank,
                                 ") against ", theirs.used, " of ", theirs.region_bytes, " (rank ", rank, ")"));
    }
    all_can_reuse = all_can_reuse && theirs.can_reuse != 0;
  }
  if (all_can_reuse) start_over();
}

// Nobody holds anything, so nobody writes: each rank zeroes its own region, and nobody goes on before all have.
void MappedRegions::start_over() {
  std::byte* const own = at(options_.rank, 0);
  std::exception_ptr failed;
  try {
    if (options_.device.device_type == kDLCPU) {
      std::memset(own, 0, used_);
    } else {
      options_.zero(own, used_);
    }
  } catch (...) {
    failed = std::current_exception();  // the others wait for this rank: they are to know
  }
  const std::byte answer[] = {std::byte{failed == nullptr}};
  const auto answers = agreement_->all_gather(answer, Env::read().timeout_ns);
  if (failed) std::rethrow_exception(failed);
  for (int32_t rank = 0; rank < options_.world; ++rank) {
    if (answers[static_cast<size_t>(rank)] != std::vector(1, std::byte{1})) {
      throw Error(text("rank ", rank, " cannot zero its region, so that memory cannot be used again"));
    }
  }
  const std::scoped_lock lock(mutex_);
  used_ = 0;
}

size_t MappedRegions::take(size_t bytes) {
  const std::scoped_lock lock(mutex_);
  const size_t left = options_.bytes - used_;
  if (bytes > left) {
    throw Error(text("rank ", options_.rank, " cannot allocate ", bytes, " bytes of mapped memory: ", left,
                     " bytes are left of a region of ", options_.bytes));
  }
  const size_t begin = used_;
  const size_t padding = (kAlignment - bytes % kAlignment) % kAlignment;
  used_ += bytes + std::min(padding, left - bytes);
  ++held_;
  return begin;
}

class MappedTransport final : public Transport {
 public:
  explicit MappedTransport(const MappedOptions& options) : regions_(std::make_shared<MappedRegions>(options)) {}
  int32_t world() const override { return regions_->options().world; }
  int32_t rank() const override { return regions_->options().rank; }
  DLDevice device() const override { return regions_->options().device; }
  int32_t ranks_on_device() const override { return regions_->options().ranks_on_device; }
  std::shared_ptr<SymmetricMemory> allocate(const std::string& terms, size_t bytes) override {
    return regions_->allocate(terms, bytes);
  }
  std::unique_ptr<Exchange> open_exchange() override { return regions_->open(ExchangeKind::kOpened); }
  std::string repr() const override {
    return text("MappedTransport(rank=", rank(), " of ", world(), ", ", device_text(device()), ", ",
                regions_->options().bytes, " bytes)");
  }

 private:
  const std::shared_ptr<MappedRegions> regions_;
};

void check_bases(const MappedOptions& options) {
  if (options.bases.size() != static_cast<size_t>(options.world)) {
    throw InvalidArgument(text("bases must name ", options.world, " regions, one a rank, got ", options.bases.size()));
  }
  std::vector<std::pair<uintptr_t, size_t>> by_address;
  for (size_t rank = 0; rank < options.bases.size(); ++rank) {
    if (options.bases[rank] == nullptr) throw InvalidArgument(text("the base of rank ", rank, " is null"));
    const auto address = reinterpret_cast<uintptr_t>(options.bases[rank]);
    if (address % kAlignment != 0) {
      throw InvalidArgument(text("the base of rank ", rank, " must be a multiple of ", kAlignment, ", got ",
                                 options.bases[rank], ", which is ", address % kAlignment, " bytes past one"));
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
  return std::make_shared<MappedTransport>(options);
}

}  // namespace tileoverlap
