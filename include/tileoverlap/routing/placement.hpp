#pragma once
// Which rank hosts which expert.

#include <cstdint>
#include <string>
#include <vector>

#include "tileoverlap/core/api.hpp"

namespace tileoverlap {

// Experts are contiguous by rank: rank r hosts the ids [expert_begin[r], expert_begin[r + 1]). Ids are physical
// experts: a replica made by a load balancer is one more expert. Ranks may host different numbers, also none.
// Immutable and cheap to compare.
class TILEOVERLAP_API Placement {
 public:
  // Spreads `experts` over `world` ranks; where they do not divide, the first ranks host one more.
  // Errors: InvalidArgument unless 1 <= world and 0 <= experts.
  static Placement even(int32_t world, int32_t experts);
  // `expert_begin` has world + 1 entries, starts at 0 and never decreases. Errors: InvalidArgument.
  static Placement from_begins(std::vector<int32_t> expert_begin);

  int32_t world() const { return static_cast<int32_t>(expert_begin_.size()) - 1; }
  int32_t experts() const { return expert_begin_.back(); }
  int32_t begin(int32_t rank) const { return expert_begin_[static_cast<size_t>(rank)]; }
  int32_t end(int32_t rank) const { return expert_begin_[static_cast<size_t>(rank) + 1]; }
  int32_t experts_on(int32_t rank) const { return end(rank) - begin(rank); }
  int32_t rank_of(int32_t expert) const;
  const std::vector<int32_t>& expert_begin() const { return expert_begin_; }
  std::string repr() const;

  friend bool operator==(const Placement&, const Placement&) = default;

 private:
  explicit Placement(std::vector<int32_t> expert_begin) : expert_begin_(std::move(expert_begin)) {}
  std::vector<int32_t> expert_begin_;
};

}  // namespace tileoverlap
