#include "execute/layer_checks.hpp"

#include "core/text.hpp"

namespace tileoverlap {
namespace {

// Width of x.
int64_t input_width(const LayerOptions& options) {
  return has_first_projection(options) ? options.hidden : options.inner;
}

int64_t up_width(const LayerOptions& options) {
  return options.expert == ExpertKind::kSiluGate ? 2 * options.inner : options.inner;
}

}  // namespace

LayerOptions checked(LayerOptions options, const Transport& transport) {
  check_common(common(options), transport);
  if (std::string(name(options.expert)) == "?") {
    throw InvalidArgument(
        text("expert must be single, gelu or silu_gate, got the value ", static_cast<int>(options.expert)));
  }
  check_row_bytes("hidden", options.hidden, options.dtype);
  check_row_bytes("inner", options.inner, options.dtype);
  fill_timeouts(options.timeout_ns, options.warmup_timeout_ns);
  return options;
}

EngineOptions engine_options(const LayerOptions& options, uint64_t first_epoch) {
  const std::string terms =
      text("layer expert=", name(options.expert), " hidden=", options.hidden, " inner=", options.inner);
  EngineOptions engine = engine_options(common(options), terms, first_epoch, options.record_timeline);
  engine.k = options.inner;
  engine.n = options.hidden;
  engine.input_width = input_width(options);
  engine.expert = options.expert;
  return engine;
}

CheckedCall check_call(const LayerOptions& options, int32_t rank, const LayerArgs& args, const TensorPlace& place) {
  const int64_t experts = options.placement.experts_on(rank);
  check_mode(args.mode);
  CheckedCall call{.x = {}, .up = {}, .down = {}, .tokens = {}, .mode = args.mode};
  call.tokens = check_tokens(args.topk_ids, args.topk_weights, args.out, options.dtype, options.top_k,
                             options.max_tokens, options.hidden, rank, place);
  call.x = check_tensor(args.x, {.argument = "x",
                                 .dtypes = {options.dtype},
                                 .shape = {call.tokens.ids.shape[0], input_width(options)},
                                 .shape_names = has_first_projection(options) ? "[T, hidden]" : "[T, inner]",
                                 .device = place.device,
                                 .row_bytes = place.row_bytes});
  if (has_first_projection(options)) {
    call.up = check_weights(
        args.up,
        {.argument = "up",
         .dtype = options.dtype,
         .shape = {experts, up_width(options), options.hidden},
         .shape_names = options.expert == ExpertKind::kSiluGate ? "[experts on this rank, 2 * inner, hidden]"
                                                                : "[experts on this rank, inner, hidden]",
         .place = place},
        call.tokens.out);
  } else if (args.up) {
    throw InvalidArgument("up must not be given: experts of kind 'single' have no first projection");
  }
  call.down = check_weights(args.down,
                            {.argument = "down",
                             .dtype = options.dtype,
                             .shape = {experts, options.hidden, options.inner},
                             .shape_names = "[experts on this rank, hidden, inner]",
                             .place = place},
                            call.tokens.out);
  refuse_overlap(call.tokens.out, call.x, "x");
  return call;
}

}  // namespace tileoverlap
