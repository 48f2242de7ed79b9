#include "execute/comm_sms.hpp"

#include <algorithm>
#include <bit>
#include <span>

#include "tileoverlap/predict/choose_split.hpp"

namespace tileoverlap {
namespace {

// The power of four that is nearest, from below or above: 2 is nearer to 4 than to 1.
size_t size_of_call(int64_t copies) {
  return static_cast<size_t>(std::bit_width(static_cast<uint64_t>(std::max<int64_t>(copies, 1)))) / 2;
}

}  // namespace

CommSms::CommSms(const PredictQuery& query, int32_t rank, int64_t most_copies) {
  // Of larger calls, which differ in nothing but their length, a prediction would take long.
  constexpr int64_t kLargest = int64_t{1} << 18;
  const bool anything = query.placement.experts() > 0;
  const size_t largest = anything ? size_of_call(std::min(most_copies, kLargest)) : 0;
  for (size_t size = 0; size <= largest; ++size) {
    const RouteCounts counts = even_counts(query.placement, anything ? int64_t{1} << (2 * size) : 0);
    by_size_.push_back(choose_split(query, counts, std::span(&rank, 1)).comm_sms);
  }
}

int32_t CommSms::of_call(int64_t copies) const { return by_size_[std::min(size_of_call(copies), by_size_.size() - 1)]; }

}  // namespace tileoverlap
