#include "tileoverlap/predict/choose_split.hpp"

#include <algorithm>
#include <map>
#include <vector>

#include "core/text.hpp"
#include "predict/check_query.hpp"
#include "predict/operator_model.hpp"
#include "tileoverlap/core/error.hpp"

namespace tileoverlap {
namespace {

// Up to so many of a rank's SMs: beyond, nothing has been measured. (For few rows and much memory traffic predictions
// would have half of the SMs ship.)
int32_t most_that_ship(int32_t sms) { return std::max(1, sms / 5); }

// 1, 2, 3, 4, 6, 8, 12, 16, ... and `most`.
std::vector<int32_t> coarse(int32_t most) {
  std::vector<int32_t> counts;
  for (int32_t power = 1; power < most; power *= 2) {
    counts.push_back(power);
    if (power > 1 && power + power / 2 < most) counts.push_back(power + power / 2);
  }
  counts.push_back(most);
  return counts;
}

}  // namespace

SplitChoice choose_split(const PredictQuery& query, const RouteCounts& counts, std::span<const int32_t> ranks) {
  const std::vector<int32_t> looked_at = ranks_or_all(query, ranks);
  check_query(query, counts, looked_at);
  const OperatorModel model(query, counts, looked_at);
  std::map<int32_t, double> seen;  // time by number of SMs
  const auto best = [&] {
    return std::min_element(seen.begin(), seen.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  };
  for (const int32_t count : coarse(most_that_ship(sms_of(query)))) seen[count] = model.overlapped_us(count);
  const auto found = best();
  const int32_t low = found == seen.begin() ? found->first : std::prev(found)->first;
  const int32_t high = std::next(found) == seen.end() ? found->first : std::next(found)->first;
  for (int32_t count = low + 1; count < high; ++count) {
    if (!seen.contains(count)) seen[count] = model.overlapped_us(count);
  }
  constexpr double kAsGood = 1.002;
  const double most = kAsGood * best()->second;
  const auto chosen = std::find_if(seen.begin(), seen.end(), [&](const auto& entry) { return entry.second <= most; });
  return {
      .comm_sms = chosen->first, .overlapped_us = chosen->second, .serial_us = model.predict(chosen->first).serial_us};
}

RouteCounts even_counts(const Placement& placement, int64_t copies) {
  const int64_t experts = placement.experts();
  if (copies < 0 || (copies > 0 && experts == 0)) {
    throw InvalidArgument(
        text("an owner has copies >= 0, and 0 where there are no experts, got ", copies, " for ", experts, " experts"));
  }
  std::vector<int32_t> counts(static_cast<size_t>(placement.world() * experts));
  for (int64_t owner = 0; owner < placement.world(); ++owner) {
    for (int64_t expert = 0; expert < experts; ++expert) {
      // What does not divide goes to other experts for each owner, so that ranks stay even.
      const int64_t turned = (expert + owner * (copies % std::max<int64_t>(experts, 1))) % experts;
      counts[static_cast<size_t>(owner * experts + expert)] =
          static_cast<int32_t>(copies / experts + (turned < copies % experts ? 1 : 0));
    }
  }
  return RouteCounts(placement, std::move(counts));
}

}  // namespace tileoverlap
