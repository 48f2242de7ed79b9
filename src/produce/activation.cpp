#include "produce/activation.hpp"

#include <cmath>
#include <numbers>

namespace tileoverlap {

void gelu(float* values, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const float x = values[i];
    values[i] = 0.5f * x * (1.0f + std::erf(x * (1.0f / std::numbers::sqrt2_v<float>)));
  }
}

void silu_gate(float* gate, const float* up, int64_t count) {
  for (int64_t i = 0; i < count; ++i) gate[i] = gate[i] / (1.0f + std::exp(-gate[i])) * up[i];
}

}  // namespace tileoverlap
