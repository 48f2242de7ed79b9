#include "tileoverlap/plan/schedule.hpp"

#include <algorithm>
#include <numeric>

#include "plan/band_groups.hpp"
#include "plan/build.hpp"

namespace tileoverlap::build {
namespace {

// Appends bands [begin, end) of one expert in groups; `group`, the size of the next one, grows from 1 to its final size
// over the whole list.
void append_groups(int32_t expert, int32_t begin, int32_t end, int32_t& group, PlanData& plan) {
  const int32_t bands = end - begin, first = group;
  for (int32_t done = 0; done < bands;) {
    const int32_t size = group_at(done, bands, first, plan.options.group).size;
    const auto group_begin = static_cast<int32_t>(plan.order.size());
    for (int32_t i = 0; i < size; ++i) plan.order.push_back({begin + done + i, expert, group_begin, size});
    done += size;
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
  const auto at = [&](int32_t place) -> const ExpertRows& { return *experts[static_cast<size_t>(place)]; };
  const auto places = static_cast<int32_t>(experts.size());
  const auto local_bands = [&](int32_t place) { return at(place).bands - at(place).remote_bands; };
  const int32_t first_split = first_split_place(
      places, plan.options.group, [&](int32_t place) { return at(place).remote_bands; }, local_bands);
  const auto held_from = [&](int32_t place) {
    const auto held = static_cast<int32_t>(held_bands(place, first_split, local_bands(place)));
    return at(place).first_band + at(place).bands - held;
  };
  plan.order.reserve(static_cast<size_t>(plan.rows / plan.options.tile_m));
  int32_t group = 1;
  for (int32_t place = 0; place < places; ++place) {
    append_groups(at(place).expert, at(place).first_band, held_from(place), group, plan);
  }
  for (int32_t place = 0; place < places; ++place) {
    append_groups(at(place).expert, held_from(place), at(place).first_band + at(place).bands, group, plan);
  }
}

}  // namespace tileoverlap::build
