#include "tileoverlap/plan/schedule.hpp"

#include <algorithm>
#include <numeric>

#include "plan/build.hpp"

namespace tileoverlap::build {
namespace {

// Appends bands [begin, end) of one expert in groups; `group` grows from 1 to its final size over the whole list.
void append_groups(int32_t expert, int32_t begin, int32_t end, int32_t& group, PlanData& plan) {
  while (begin < end) {
    const int32_t size = std::min(group, end - begin);
    const auto group_begin = static_cast<int32_t>(plan.order.size());
    for (int32_t i = 0; i < size; ++i) plan.order.push_back({begin + i, expert, group_begin, size});
    begin += size;
    group = static_cast<int32_t>(std::min<int64_t>(int64_t{group} * 2, plan.options.group));
  }
}

}  // namespace

void schedule_bands(PlanData& plan) {
  std::vector<const ExpertRows*> experts;
  experts.reserve(plan.experts.size());
  for (const ExpertRows& expert : plan.experts) experts.push_back(&expert);
  std::stable_sort(experts.begin(), experts.end(), [](const ExpertRows* a, const ExpertRows* b) {
    return a->remote_bands > b->remote_bands;  // stable: ties stay in the order of expert ids
  });
  plan.order.reserve(static_cast<size_t>(plan.rows / plan.options.tile_m));
  int32_t group = 1;
  for (const ExpertRows* e : experts) {
    append_groups(e->expert, e->first_band, e->first_band + e->remote_bands, group, plan);
  }
  for (const ExpertRows* e : experts) {
    append_groups(e->expert, e->first_band + e->remote_bands, e->first_band + e->bands, group, plan);
  }
}

}  // namespace tileoverlap::build
