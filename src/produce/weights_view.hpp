#pragma once
// Weights that passed check_weights.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tileoverlap/core/tensor.hpp"

namespace tileoverlap {

struct WeightsView {
  int64_t row_stride = 0;  // elements
  // One tensor: its first matrix, and elements from one expert's to the next.
  const std::byte* data = nullptr;
  int64_t expert_stride = 0;
  // Or a matrix an expert.
  std::vector<const void*> matrices = {};

  const std::byte* matrix(int64_t expert, DType dtype) const {
    return matrices.empty() ? data + expert * expert_stride * size_of(dtype)
                            : static_cast<const std::byte*>(matrices[static_cast<size_t>(expert)]);
  }
};

}  // namespace tileoverlap
