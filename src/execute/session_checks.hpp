#pragma once
// What every executor's session checks before anything starts.

#include <cstdint>

#include "execute/checks.hpp"
#include "tileoverlap/execute/executor.hpp"

namespace tileoverlap {

// The options with limits filled in. Throws InvalidArgument, DTypeError.
SessionOptions checked(SessionOptions options, const Transport& transport);
EngineOptions engine_options(const SessionOptions& options, uint64_t first_epoch);

struct CheckedRun {
  TensorView rows;
  WeightsView weights;
  TokenTensors tokens;
  RunMode mode;
};
// Throws InvalidArgument, DTypeError, CapacityError.
CheckedRun check_run(const SessionOptions& options, int32_t rank, const PlanData& plan, const RunArgs& args,
                     const TensorPlace& place = {});

}  // namespace tileoverlap
