#pragma once
// How many copies each rank sends to each expert: all that a plan needs to know of the routing.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tileoverlap/core/tensor.hpp"
#include "tileoverlap/routing/placement.hpp"

namespace tileoverlap {

// counts[s][e]: copies, that is (token, slot) pairs, that owner s sends to expert e. The same matrix on all ranks.
class TILEOVERLAP_API RouteCounts {
 public:
  // `counts` is row-major [world, experts]. Errors: InvalidArgument for a wrong size or a negative entry.
  RouteCounts(const Placement& placement, std::vector<int32_t> counts);

  int32_t world() const { return world_; }
  int32_t experts() const { return experts_; }
  int32_t at(int32_t owner, int32_t expert) const { return row(owner)[static_cast<size_t>(expert)]; }
  std::span<const int32_t> row(int32_t owner) const {
    return {counts_.data() + static_cast<int64_t>(owner) * experts_, static_cast<size_t>(experts_)};
  }
  std::span<const int32_t> values() const { return counts_; }
  int64_t copies_of(int32_t owner) const;  // copies that `owner` sends in all
  std::string repr() const;

 private:
  int32_t world_, experts_;
  std::vector<int32_t> counts_;
};

// Reads the ids of one rank's tokens.
//   topk_ids  [T, k] int32 or int64, CPU; -1 = no copy; the same expert twice in a token is two copies.
// Any other id outside 0 .. experts-1 throws InvalidArgument naming rank, token, slot and the full 64-bit value.
TILEOVERLAP_API std::vector<int32_t> count_ids(const Placement& placement, int32_t rank, const TensorArg& topk_ids);

// The matrix for ranks that live in one process: `topk_ids[r]` are rank r's ids. Errors as count_ids.
TILEOVERLAP_API RouteCounts count_routes(const Placement& placement, std::span<const TensorArg> topk_ids);

}  // namespace tileoverlap
