#pragma once
// The weights of a rank's experts, as callers hand them in.

#include <concepts>
#include <span>

#include "tileoverlap/core/tensor.hpp"

namespace tileoverlap {

// One tensor [experts on this rank, rows, K], or one tensor [rows, K] an expert in the order of experts: these may lie
// anywhere, but their rows must be the same stride apart. Borrows, as TensorArg does; the list is read at once.
struct WeightsArg {
  TensorArg tensor = {};
  std::span<const TensorArg> experts = {};

  WeightsArg() = default;
  template <class Tensor>
  requires std::convertible_to<Tensor, TensorArg> WeightsArg(const Tensor& all)
      : tensor(all) {}                                                      // NOLINT: implicit on purpose
  WeightsArg(std::span<const TensorArg> by_expert) : experts(by_expert) {}  // NOLINT: implicit on purpose
  explicit operator bool() const { return static_cast<bool>(tensor) || !experts.empty(); }
};

}  // namespace tileoverlap
