#pragma once
// What every executor's layer checks before anything starts.

#include <cstdint>

#include "execute/checks.hpp"
#include "tileoverlap/execute/executor.hpp"

namespace tileoverlap {

// The options with limits filled in. Throws InvalidArgument, DTypeError.
LayerOptions checked(LayerOptions options, const Transport& transport);
EngineOptions engine_options(const LayerOptions& options, uint64_t first_epoch);

inline bool has_first_projection(const LayerOptions& options) { return options.expert != ExpertKind::kSingle; }

struct CheckedCall {
  TensorView x;
  WeightsView up, down;
  TokenTensors tokens;
  RunMode mode;
};
// Throws InvalidArgument, DTypeError, CapacityError.
CheckedCall check_call(const LayerOptions& options, int32_t rank, const LayerArgs& args, const TensorPlace& place = {});

}  // namespace tileoverlap
