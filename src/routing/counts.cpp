#include "tileoverlap/routing/counts.hpp"

#include <limits>
#include <numeric>

#include "core/text.hpp"
#include "routing/check_rank.hpp"
#include "routing/read_ids.hpp"
#include "tileoverlap/core/error.hpp"

namespace tileoverlap {

TensorView check_ids(const TensorArg& topk_ids, DLDevice device) {
  return check_tensor(topk_ids, {.argument = "topk_ids",
                                 .dtypes = {DType::kInt32, DType::kInt64},
                                 .shape = {-1, -1},
                                 .shape_names = "[T, k]",
                                 .device = device});
}

RouteCounts::RouteCounts(const Placement& placement, std::vector<int32_t> counts)
    : world_(placement.world()), experts_(placement.experts()), counts_(std::move(counts)) {
  const auto wanted = static_cast<size_t>(world_) * static_cast<size_t>(experts_);
  if (counts_.size() != wanted) {
    throw InvalidArgument(text("counts must have world * experts = ", world_, " * ", experts_, " = ", wanted,
                               " entries, got ", counts_.size()));
  }
  for (size_t i = 0; i < counts_.size(); ++i) {
    if (counts_[i] < 0) {
      throw InvalidArgument(text("counts must not be negative, got ", counts_[i], " for owner ",
                                 i / static_cast<size_t>(experts_), ", expert ", i % static_cast<size_t>(experts_)));
    }
  }
}

int64_t RouteCounts::copies_of(int32_t owner) const {
  const auto counts = row(owner);
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

std::string RouteCounts::repr() const {
  int64_t copies = 0;
  for (int32_t owner = 0; owner < world_; ++owner) copies += copies_of(owner);
  return text("RouteCounts(world=", world_, ", experts=", experts_, ", copies=", copies, ")");
}

std::vector<int32_t> count_ids(const Placement& placement, int32_t rank, const TensorArg& topk_ids) {
  check_rank(placement, rank);
  const TensorView ids = check_ids(topk_ids);
  if (ids.elements > std::numeric_limits<int32_t>::max()) {
    throw InvalidArgument(text("topk_ids ", shape_text(ids.shape, 2), " has more than 2^31 - 1 copies"));
  }
  std::vector<int32_t> counts(static_cast<size_t>(placement.experts()));
  for_each_copy(ids, placement.experts(), rank,
                [&](int64_t, int32_t, int32_t expert) { ++counts[static_cast<size_t>(expert)]; });
  return counts;
}

RouteCounts count_routes(const Placement& placement, std::span<const TensorArg> topk_ids) {
  if (topk_ids.size() != static_cast<size_t>(placement.world())) {
    throw InvalidArgument(text("topk_ids must hold one tensor a rank, ", placement.world(), ", got ", topk_ids.size()));
  }
  std::vector<int32_t> all;
  all.reserve(topk_ids.size() * static_cast<size_t>(placement.experts()));
  for (size_t rank = 0; rank < topk_ids.size(); ++rank) {
    const auto counts = count_ids(placement, static_cast<int32_t>(rank), topk_ids[rank]);
    all.insert(all.end(), counts.begin(), counts.end());
  }
  return RouteCounts(placement, std::move(all));
}

}  // namespace tileoverlap
