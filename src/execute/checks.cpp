#include "execute/checks.hpp"

#include <unistd.h>

#include <limits>

#include "core/text.hpp"
#include "plan/build.hpp"
#include "routing/read_ids.hpp"
#include "tileoverlap/core/env.hpp"

namespace tileoverlap {

void check_row_bytes(const char* name_of_width, int64_t width, DType dtype) {
  constexpr int64_t kVectorBytes = 16;
  const int64_t multiple = kVectorBytes / size_of(dtype);
  if (width <= 0 || width % multiple != 0) {
    throw InvalidArgument(text(name_of_width, " must be a positive multiple of ", multiple, " for ", name(dtype),
                               " (rows of 16 bytes), got ", name_of_width, " = ", width));
  }
  if (width > std::numeric_limits<int32_t>::max()) {
    throw InvalidArgument(text(name_of_width, " must be below 2^31, got ", name_of_width, " = ", width));
  }
}

void check_scratch(double bytes_per_thread, int32_t threads, const PlanOptions& plan, int64_t k) {
  const double memory = static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
  if (bytes_per_thread * threads > memory) {
    throw InvalidArgument(text("tile_m = ", plan.tile_m, ", tile_n = ", plan.tile_n, " and a GEMM depth of ", k,
                               " take ", bytes_per_thread, " bytes in each of ", threads,
                               " producer threads, this machine has ", memory, " bytes"));
  }
}

void check_mode(RunMode mode) {
  if (mode != RunMode::kOverlapped && mode != RunMode::kSerial) {
    throw InvalidArgument(text("mode must be overlapped or serial, got the value ", static_cast<int32_t>(mode)));
  }
}

void check_common(const CommonOptions& options, const Transport& transport) {
  if (options.dtype != DType::kFloat32 && options.dtype != DType::kBFloat16 && options.dtype != DType::kFloat16) {
    throw DTypeError(text("dtype must be float32, bfloat16 or float16, got ", name(options.dtype)));
  }
  if (options.placement->world() != transport.world()) {
    throw InvalidArgument(
        text("the placement is for ", options.placement->world(), " ranks, the transport has ", transport.world()));
  }
  build::check_options(*options.plan);
  if (options.top_k <= 0) throw InvalidArgument(text("top_k must be positive, got ", options.top_k));
  if (options.max_tokens < 0) throw InvalidArgument(text("max_tokens must not be negative, got ", options.max_tokens));
  if (options.timeout_ns < 0 || options.warmup_timeout_ns < 0 || options.timeout_ns > kLongestTimeoutNs ||
      options.warmup_timeout_ns > kLongestTimeoutNs) {
    throw InvalidArgument(text("timeouts must lie between 0 and 1e9 seconds, got ", options.timeout_ns, " ns and ",
                               options.warmup_timeout_ns, " ns"));
  }
}

void fill_timeouts(int64_t& timeout_ns, int64_t& warmup_timeout_ns) {
  const Env env = Env::read();
  if (warmup_timeout_ns == 0) warmup_timeout_ns = timeout_ns > 0 ? timeout_ns : env.warmup_timeout_ns;
  if (timeout_ns == 0) timeout_ns = env.timeout_ns;
}

EngineOptions engine_options(const CommonOptions& options, const std::string& terms, uint64_t first_epoch,
                             bool record_timeline) {
  std::string begins;
  for (const int32_t begin : options.placement->expert_begin()) begins += text(begins.empty() ? "" : ",", begin);
  return {.placement = *options.placement,
          .dtype = options.dtype,
          .k = 0,
          .n = 0,
          .capacity = {.max_tokens = options.max_tokens, .top_k = options.top_k},
          .plan = *options.plan,
          .input_width = 0,
          .expert = ExpertKind::kSingle,
          .timeout_ns = options.timeout_ns,
          .warmup_timeout_ns = options.warmup_timeout_ns,
          .record_timeline = record_timeline,
          // Words without blanks: Transport::allocate names those that differ.
          .terms = text(terms, " placement=[", begins, "] dtype=", name(options.dtype), " top_k=", options.top_k,
                        " max_tokens=", options.max_tokens, " tile_m=", options.plan->tile_m, " tile_n=",
                        options.plan->tile_n, " layout=", name(options.plan->layout), " first_epoch=", first_epoch)};
}

TokenTensors check_tokens(const TensorArg& topk_ids, const TensorArg& topk_weights, const TensorArg& out, DType dtype,
                          int32_t top_k, int64_t max_tokens, int64_t n, int32_t rank, const TensorPlace& place) {
  TokenTensors tensors;
  tensors.ids = check_ids(topk_ids, place.device);
  const int64_t tokens = tensors.ids.shape[0];
  if (tensors.ids.shape[1] != top_k) {
    throw InvalidArgument(
        text("topk_ids must be [T, k] with k = top_k = ", top_k, ", got [", tokens, ", ", tensors.ids.shape[1], "]"));
  }
  if (tokens > max_tokens) {
    throw CapacityError(
        text("rank ", rank, " has T = ", tokens, " tokens, it was prepared for max_tokens = ", max_tokens));
  }
  tensors.weights = check_tensor(topk_weights, {.argument = "topk_weights",
                                                .dtypes = {DType::kFloat32},
                                                .shape = {tokens, top_k},
                                                .shape_names = "[T, k]",
                                                .device = place.device});
  tensors.out = check_tensor(out, {.argument = "out",
                                   .dtypes = {dtype},
                                   .shape = {tokens, n},
                                   .shape_names = "[T, N]",
                                   .writable = true,
                                   .device = place.device,
                                   .row_bytes = place.row_bytes});
  refuse_overlap(tensors.out, tensors.ids, "topk_ids");
  refuse_overlap(tensors.out, tensors.weights, "topk_weights");
  return tensors;
}

void refuse_overlap(const TensorView& out, const TensorView& input, const char* input_name) {
  if (overlaps(out, input)) throw InvalidArgument(text("out shares memory with ", input_name));
}

namespace {

// One tensor an expert. Kernels step from row to row by one stride, whichever the expert.
WeightsView check_matrices(std::span<const TensorArg> experts, const WeightsSpec& spec, const TensorView& out) {
  const auto [count, rows, k] = spec.shape;
  if (static_cast<int64_t>(experts.size()) != count) {
    throw InvalidArgument(
        text(spec.argument, " must be one tensor or ", count, " tensors, one an expert, got ", experts.size()));
  }
  WeightsView view;
  for (const TensorArg& expert : experts) {
    const std::string argument = text(spec.argument, "[", view.matrices.size(), "]");
    const TensorView matrix = check_tensor(expert, {.argument = argument.c_str(),
                                                    .dtypes = {spec.dtype},
                                                    .shape = {rows, k},
                                                    .shape_names = "[rows, K]",
                                                    .device = spec.place.device,
                                                    .row_bytes = spec.place.row_bytes});
    if (view.matrices.empty()) view.row_stride = matrix.strides[0];
    if (matrix.strides[0] != view.row_stride) {
      throw InvalidArgument(text(argument, " has rows ", matrix.strides[0], " elements apart, ", spec.argument,
                                 "[0] has them ", view.row_stride, " apart: all must be alike"));
    }
    refuse_overlap(out, matrix, argument.c_str());
    view.matrices.push_back(matrix.data);
  }
  return view;
}

}  // namespace

WeightsView check_weights(const WeightsArg& weights, const WeightsSpec& spec, const TensorView& out) {
  if (!weights.experts.empty()) return check_matrices(weights.experts, spec, out);
  const TensorView tensor = check_tensor(weights.tensor, {.argument = spec.argument,
                                                          .dtypes = {spec.dtype},
                                                          .shape = {spec.shape.begin(), spec.shape.end()},
                                                          .shape_names = spec.shape_names,
                                                          .device = spec.place.device,
                                                          .row_bytes = spec.place.row_bytes});
  refuse_overlap(out, tensor, spec.argument);
  return {.row_stride = tensor.strides[1], .data = tensor.data, .expert_stride = tensor.strides[0]};
}

}  // namespace tileoverlap
