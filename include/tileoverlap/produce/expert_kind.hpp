#pragma once
// What experts compute.

#include <cstdint>
#include <string>

#include "tileoverlap/core/api.hpp"

namespace tileoverlap {

// What an expert computes from a row x, with down [hidden, inner]:
enum class ExpertKind : int32_t {
  kSingle,    // down x, x of width inner
  kGelu,      // down gelu(up x): up [inner, hidden], the exact (erf) GELU
  kSiluGate,  // down (silu(gate x) * (up x)): `up` holds both, [2 * inner, hidden], gate first
};

TILEOVERLAP_API const char* name(ExpertKind kind);  // "single", "gelu", "silu_gate"
TILEOVERLAP_API ExpertKind parse_expert_kind(const std::string& text);

}  // namespace tileoverlap
