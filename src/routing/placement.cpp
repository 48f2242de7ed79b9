#include "tileoverlap/routing/placement.hpp"

#include <algorithm>

#include "core/text.hpp"
#include "tileoverlap/core/error.hpp"

namespace tileoverlap {

Placement Placement::even(int32_t world, int32_t experts) {
  if (world < 1) throw InvalidArgument(text("world must be at least 1, got ", world));
  if (experts < 0) throw InvalidArgument(text("experts must not be negative, got ", experts));
  std::vector<int32_t> begin(static_cast<size_t>(world) + 1);
  for (int32_t rank = 0; rank <= world; ++rank) {
    begin[static_cast<size_t>(rank)] = rank * (experts / world) + std::min(rank, experts % world);
  }
  return Placement(std::move(begin));
}

Placement Placement::from_begins(std::vector<int32_t> expert_begin) {
  if (expert_begin.size() < 2) {
    throw InvalidArgument(text("expert_begin needs world + 1 entries, at least 2, got ", expert_begin.size()));
  }
  if (expert_begin.front() != 0) {
    throw InvalidArgument(text("expert_begin must start at 0, got ", expert_begin.front()));
  }
  for (size_t rank = 1; rank < expert_begin.size(); ++rank) {
    if (expert_begin[rank] < expert_begin[rank - 1]) {
      throw InvalidArgument(text("expert_begin must not decrease, got ", expert_begin[rank - 1], " then ",
                                 expert_begin[rank], " at index ", rank));
    }
  }
  return Placement(std::move(expert_begin));
}

int32_t Placement::rank_of(int32_t expert) const {
  if (expert < 0 || expert >= experts()) {
    throw InvalidArgument(text("expert must lie in ", range_text(0, experts()), ", got ", expert));
  }
  // The last rank that begins at or before the expert: ranks without experts share their begin with the next.
  const auto after = std::upper_bound(expert_begin_.begin(), expert_begin_.end(), expert);
  return static_cast<int32_t>(after - expert_begin_.begin()) - 1;
}

std::string Placement::repr() const {
  return text("Placement(world=", world(), ", experts=", experts(),
              ", expert_begin=", shape_text(expert_begin_, static_cast<int64_t>(expert_begin_.size())), ")");
}

}  // namespace tileoverlap
