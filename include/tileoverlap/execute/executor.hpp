#pragma once
// Running plans: an executor prepares sessions and layers; a session runs the return path again and again.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "tileoverlap/core/dtype.hpp"
#include "tileoverlap/core/error.hpp"
#include "tileoverlap/core/tensor.hpp"
#include "tileoverlap/core/timeline.hpp"
#include "tileoverlap/execute/calls.hpp"
#include "tileoverlap/execute/moe_layer.hpp"
#include "tileoverlap/execute/run_mode.hpp"
#include "tileoverlap/plan/capacity.hpp"
#include "tileoverlap/plan/plan.hpp"
#include "tileoverlap/produce/weights.hpp"
#include "tileoverlap/transport/transport.hpp"

namespace tileoverlap {

struct SessionOptions {
  Placement placement = Placement::even(1, 1);
  DType dtype = DType::kBFloat16;  // of rows, weights and out
  int64_t k = 0;                   // GEMM depth; k * size_of(dtype) must be a multiple of 16 bytes
  int64_t n = 0;                   // width of a returned row; likewise
  int32_t top_k = 0;
  int64_t max_tokens = 0;         // on any one rank; any number >= 0, no alignment asked for
  PlanOptions plan = {};          // tile_m, tile_n and layout fix the capacity; plans that are run must agree
  int64_t timeout_ns = 0;         // limit of each wait; 0: TILEOVERLAP_TIMEOUT_S
  int64_t warmup_timeout_ns = 0;  // of each wait of the first run; 0: see core/env.hpp
  bool record_timeline = false;
};

// The tensors of one run on one rank. All borrowed until the run has completed.
struct RunArgs {
  TensorArg rows = {};      // [rows, K] in the plan's row order, at least plan->rows rows; padding may hold anything
  WeightsArg weights = {};  // [experts on this rank, N, K], or [N, K] an expert
  TensorArg topk_ids = {};  // [T, k] int32 or int64, -1 = no copy
  TensorArg topk_weights = {};  // [T, k] float32
  TensorArg out = {};           // [T, N]: written; tokens without a copy become zero
  RunMode mode = RunMode::kOverlapped;
  void* stream = nullptr;  // cudaStream_t of GPU executors, null is the default stream; not looked at on the CPU
};

// One rank's prepared return path: expert GEMM, rows back to their owners, weighted sum. Collective: all ranks make
// the same sequence of runs.
class TILEOVERLAP_API Session : public Calls {
 public:
  // Starts a run and returns; runs of one session complete in order. Checks everything first: when it throws
  // (InvalidArgument, DTypeError, CapacityError), nothing was started or written and the session stays usable; but
  // peers do not know: a run that threw is not a step, it must be made again with arguments that hold. (MoeLayer
  // refuses on all ranks together.) Ranks that run different plans in one step are told so by WaitTimeout (kSamePlan).
  // Throws the WaitTimeout of an earlier run: after one, the session cannot be used again.
  virtual void run(const Plan& plan, const RunArgs& args) = 0;
  virtual const SessionOptions& options() const = 0;
};

// Collective by order: the n-th session or layer that a rank prepares belongs to the n-th of the others; options
// that must agree and do not are an InvalidArgument naming both ranks and values.
class TILEOVERLAP_API Executor {
 public:
  virtual ~Executor() = default;
  virtual std::unique_ptr<Session> prepare(const SessionOptions& options) = 0;
  virtual std::unique_ptr<MoeLayer> prepare_layer(const LayerOptions& options) = 0;
  virtual std::string repr() const = 0;
};

}  // namespace tileoverlap
