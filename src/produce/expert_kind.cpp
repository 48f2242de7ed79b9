#include "tileoverlap/produce/expert_kind.hpp"

#include "core/text.hpp"
#include "tileoverlap/core/error.hpp"

namespace tileoverlap {

const char* name(ExpertKind kind) {
  switch (kind) {
    case ExpertKind::kSingle:
      return "single";
    case ExpertKind::kGelu:
      return "gelu";
    case ExpertKind::kSiluGate:
      return "silu_gate";
  }
  return "?";
}

ExpertKind parse_expert_kind(const std::string& text_value) {
  for (const ExpertKind kind : {ExpertKind::kSingle, ExpertKind::kGelu, ExpertKind::kSiluGate}) {
    if (text_value == name(kind)) return kind;
  }
  throw InvalidArgument(text("expert must be single, gelu or silu_gate, got '", text_value, "'"));
}

}  // namespace tileoverlap
