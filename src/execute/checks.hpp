#pragma once
// Checks that sessions and layers make before anything starts.

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "execute/engine_options.hpp"
#include "produce/weights_view.hpp"
#include "tileoverlap/core/tensor.hpp"
#include "tileoverlap/execute/executor.hpp"
#include "tileoverlap/produce/weights.hpp"

namespace tileoverlap {

// Rows of `width` elements must be whole 16-byte vectors: the one alignment rule, the same for all executors.
void check_row_bytes(const char* name, int64_t width, DType dtype);

void check_mode(RunMode mode);

// Producer threads fill their buffers at prepare: more of them than the machine has memory must not be tried.
void check_scratch(double bytes_per_thread, int32_t threads, const PlanOptions& plan, int64_t k);

// Options that sessions and layers share. Throws InvalidArgument.
struct CommonOptions {
  const Placement* placement;
  DType dtype;
  int32_t top_k;
  int64_t max_tokens;
  const PlanOptions* plan;
  int64_t timeout_ns, warmup_timeout_ns;
};
void check_common(const CommonOptions& options, const Transport& transport);

template <class Options>  // SessionOptions or LayerOptions
CommonOptions common(const Options& options) {
  return {.placement = &options.placement,
          .dtype = options.dtype,
          .top_k = options.top_k,
          .max_tokens = options.max_tokens,
          .plan = &options.plan,
          .timeout_ns = options.timeout_ns,
          .warmup_timeout_ns = options.warmup_timeout_ns};
}

// Sets `timeout_ns` and `warmup_timeout_ns` where they are 0, from the environment; a limit that the caller chose
// holds for the first call, too.
void fill_timeouts(int64_t& timeout_ns, int64_t& warmup_timeout_ns);

// Engine options as far as sessions and layers agree. `terms` says what only one of them has.
EngineOptions engine_options(const CommonOptions& options, const std::string& terms, uint64_t first_epoch,
                             bool record_timeline);

// Where an executor's tensors lie, and the alignment of rows that its accesses ask for (0: none).
struct TensorPlace {
  DLDevice device = {kDLCPU, 0};
  int64_t row_bytes = 0;
};

// The tensors that every call has; T is taken from topk_ids.
struct TokenTensors {
  TensorView ids, weights, out;
};
TokenTensors check_tokens(const TensorArg& topk_ids, const TensorArg& topk_weights, const TensorArg& out, DType dtype,
                          int32_t top_k, int64_t max_tokens, int64_t n, int32_t rank, const TensorPlace& place = {});

void refuse_overlap(const TensorView& out, const TensorView& input, const char* input_name);

// `shape` is {experts, rows, k}; `shape_names` says so.
struct WeightsSpec {
  const char* argument;
  DType dtype;
  std::array<int64_t, 3> shape;
  const char* shape_names;
  TensorPlace place;
};
// Also refuses an `out` that shares memory with them.
WeightsView check_weights(const WeightsArg& weights, const WeightsSpec& spec, const TensorView& out);

}  // namespace tileoverlap
