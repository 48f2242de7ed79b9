#pragma once
// How many of a rank's SMs ship rows, call by call.

#include <cstdint>
#include <vector>

#include "tileoverlap/predict/predict.hpp"

namespace tileoverlap {

// Immutable. Each rank chooses for itself: results and what peers see do not depend on it.
class CommSms {
 public:
  // The same in every call.
  explicit CommSms(int32_t always) : by_size_{always} {}
  // As predicted for `rank`, for calls of up to `most_copies` copies of each owner, spread evenly: the routing of a
  // call is not known where it is launched. Looks at sizes that are four times as large each, at the time of
  // construction.
  CommSms(const PredictQuery& query, int32_t rank, int64_t most_copies);

  // Of a call in which each owner has about this many copies.
  int32_t of_call(int64_t copies) const;
  // Of the largest calls.
  int32_t of_largest() const { return by_size_.back(); }

 private:
  std::vector<int32_t> by_size_;  // of calls of 4^i copies
};

}  // namespace tileoverlap
