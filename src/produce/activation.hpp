#pragma once
// What stands between an expert's two projections, in float32.

#include <cstdint>

namespace tileoverlap {

// values[i] = gelu(values[i]), the exact form x/2 (1 + erf(x / sqrt 2)).
void gelu(float* values, int64_t count);

// gate[i] = silu(gate[i]) * up[i], silu(x) = x / (1 + exp(-x)).
void silu_gate(float* gate, const float* up, int64_t count);

}  // namespace tileoverlap
