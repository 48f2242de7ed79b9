#pragma once
// What the engine below a session or a layer is made for, on any device.

#include <cstdint>
#include <string>

#include "tileoverlap/core/dtype.hpp"
#include "tileoverlap/execute/moe_layer.hpp"
#include "tileoverlap/plan/capacity.hpp"
#include "tileoverlap/plan/options.hpp"
#include "tileoverlap/routing/placement.hpp"
#include "tileoverlap/transport/transport.hpp"

namespace tileoverlap {

// Widths and limits of one rank's engine. `k` and `n` are those of the returned GEMM.
struct EngineOptions {
  Placement placement;
  DType dtype;
  int64_t k, n;
  Capacity capacity;
  PlanOptions plan;
  int64_t input_width;  // of dispatched rows; 0: the caller dispatches
  ExpertKind expert;    // kSingle: no first projection
  int64_t timeout_ns, warmup_timeout_ns;
  bool record_timeline;
  std::string terms;  // what all ranks must agree on
};

inline bool has_first_projection(const EngineOptions& options) { return options.expert != ExpertKind::kSingle; }

// Sizes of one rank, counters apart. Throws InvalidArgument where they pass 2^63 bytes.
SizeReport size_report(const EngineOptions& options, int32_t rank);
// Bytes of the largest rank's input rows: symmetric memory has one size.
int64_t largest_of_ranks(const EngineOptions& options, int64_t SizeReport::*bytes);

}  // namespace tileoverlap
