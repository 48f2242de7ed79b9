#pragma once
// Comparing results: bit for bit, and with a reference in double.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "support/host_tensor.hpp"

namespace tileoverlap::testing {

// Names the first element that differs.
inline ::testing::AssertionResult same_bits(const std::vector<HostTensor>& got,
                                            const std::vector<HostTensor>& expected) {
  if (got.size() != expected.size())
    return ::testing::AssertionFailure() << got.size() << " ranks, not " << expected.size();
  for (size_t rank = 0; rank < got.size(); ++rank) {
    if (got[rank] == expected[rank]) continue;
    if (got[rank].elements() != expected[rank].elements()) {
      return ::testing::AssertionFailure()
             << "rank " << rank << " has " << got[rank].elements() << " elements, not " << expected[rank].elements();
    }
    const int64_t n = got[rank].size(1);
    const auto bytes = static_cast<size_t>(size_of(got[rank].dtype()));
    for (int64_t i = 0; i < got[rank].elements(); ++i) {
      const size_t at = static_cast<size_t>(i) * bytes;
      if (std::memcmp(got[rank].data() + at, expected[rank].data() + at, bytes) == 0) continue;
      return ::testing::AssertionFailure() << "rank " << rank << ", token " << i / n << ", column " << i % n << ": "
                                           << got[rank].get(i) << ", not " << expected[rank].get(i);
    }
  }
  return ::testing::AssertionSuccess();
}

// The tolerances of an end-to-end comparison: the largest error of a token relative to its largest value, and the
// relative error of all tokens in L2.
struct Tolerance {
  double per_token, global_l2;
};
inline Tolerance tolerance_of(DType dtype) {
  switch (dtype) {
    case DType::kBFloat16:
      return {6.4e-2, 8e-3};
    case DType::kFloat16:
      return {8e-3, 1e-3};
    default:
      return {1e-4, 1e-5};
  }
}

inline ::testing::AssertionResult close_to(const HostTensor& got, const std::vector<double>& expected) {
  if (got.elements() != static_cast<int64_t>(expected.size())) {
    return ::testing::AssertionFailure() << got.elements() << " elements, not " << expected.size();
  }
  const Tolerance tolerance = tolerance_of(got.dtype());
  double squared_error = 0, squared = 0;
  for (int64_t token = 0; token < got.size(0); ++token) {
    double worst = 0, largest = 0;
    for (int64_t i = token * got.size(1); i < (token + 1) * got.size(1); ++i) {
      const double value = expected[static_cast<size_t>(i)], error = double{got.get(i)} - value;
      if (!std::isfinite(error)) return ::testing::AssertionFailure() << "token " << token << " has " << got.get(i);
      worst = std::max(worst, std::abs(error));
      largest = std::max(largest, std::abs(value));
      squared_error += error * error;
      squared += value * value;
    }
    if (worst > tolerance.per_token * largest) {
      return ::testing::AssertionFailure() << "token " << token << " is off by " << worst << " of " << largest;
    }
  }
  if (std::sqrt(squared_error) > tolerance.global_l2 * std::sqrt(squared)) {
    return ::testing::AssertionFailure() << "relative L2 error " << std::sqrt(squared_error / squared);
  }
  return ::testing::AssertionSuccess();
}

}  // namespace tileoverlap::testing
