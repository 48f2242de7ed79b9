#pragma once
// A whole expert layer: dispatch, experts, return, weighted sum.

#include <cstdint>
#include <memory>
#include <string>

#include "tileoverlap/core/dtype.hpp"
#include "tileoverlap/core/tensor.hpp"
#include "tileoverlap/core/timeline.hpp"
#include "tileoverlap/execute/calls.hpp"
#include "tileoverlap/execute/run_mode.hpp"
#include "tileoverlap/plan/capacity.hpp"
#include "tileoverlap/plan/plan.hpp"
#include "tileoverlap/produce/expert_kind.hpp"
#include "tileoverlap/produce/weights.hpp"
#include "tileoverlap/routing/placement.hpp"

namespace tileoverlap {

struct LayerOptions {
  Placement placement = Placement::even(1, 1);
  DType dtype = DType::kBFloat16;  // of x, weights, the rows between the two GEMMs, and out
  ExpertKind expert = ExpertKind::kSiluGate;
  int64_t hidden = 0;  // width of out, and of x where there is a first projection; rows a multiple of 16 bytes
  int64_t inner = 0;   // depth of the returned GEMM; likewise
  int32_t top_k = 0;
  int64_t max_tokens = 0;  // on any one rank; no alignment asked for
  PlanOptions plan = {};   // choose_tile() says which tile is fastest
  int64_t timeout_ns = 0;  // as in SessionOptions
  int64_t warmup_timeout_ns = 0;
  bool record_timeline = false;
};

// The tensors of one call on one rank. All borrowed until the call has completed.
struct LayerArgs {
  TensorArg x = {};             // [T, width of x]
  TensorArg topk_ids = {};      // [T, k] int32 or int64, -1 = no copy
  TensorArg topk_weights = {};  // [T, k] float32
  WeightsArg up = {};           // [experts on this rank, inner or 2 * inner, hidden]; none for kSingle
  WeightsArg down = {};         // [experts on this rank, hidden, inner]; both also as one tensor an expert
  TensorArg out = {};           // [T, hidden]: written; tokens without a copy become zero
  RunMode mode = RunMode::kOverlapped;
  void* stream = nullptr;  // as in RunArgs
};

// One rank's layer. Every forward() is one collective step of all ranks, whether it succeeds or throws: a call that
// one rank refuses ends on all others with CallRefused, naming the rank and its reason, and the layer stays usable.
class TILEOVERLAP_API MoeLayer : public Calls {
 public:
  // Starts a call and returns; calls complete in order. When it throws (InvalidArgument, DTypeError, CapacityError),
  // nothing was written on any rank. Throws the WaitTimeout of an earlier call: after one, the layer cannot be used
  // again.
  virtual void forward(const LayerArgs& args) = 0;
  virtual const LayerOptions& options() const = 0;
};

}  // namespace tileoverlap
