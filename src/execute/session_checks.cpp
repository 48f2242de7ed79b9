#include "execute/session_checks.hpp"

#include "core/text.hpp"

namespace tileoverlap {
namespace {

// A plan carries the sizes that it was made for; a kernel of other sizes would read the wrong rows.
void check_plan_fits(const SessionOptions& options, int32_t rank, const PlanData& plan) {
  const auto differ = [](const char* what, const auto& of_plan, const auto& of_session) {
    if (of_plan != of_session) {
      throw InvalidArgument(text("the plan has ", what, " = ", of_plan, ", the session ", what, " = ", of_session));
    }
  };
  differ("rank", plan.rank, rank);
  differ("placement", plan.placement.repr(), options.placement.repr());
  differ("n", int64_t{plan.n}, options.n);
  differ("tile_m", plan.options.tile_m, options.plan.tile_m);
  differ("tile_n", plan.options.tile_n, options.plan.tile_n);
  differ("layout", std::string(name(plan.options.layout)), std::string(name(options.plan.layout)));
  const int64_t most = options.max_tokens * options.top_k;
  for (size_t owner = 0; owner < plan.copies_of.size(); ++owner) {
    if (plan.copies_of[owner] > most) {
      throw CapacityError(text("rank ", owner, " sends ", plan.copies_of[owner],
                               " copies, the session holds max_tokens * top_k = ", options.max_tokens, " * ",
                               options.top_k, " = ", most));
    }
  }
}

}  // namespace

SessionOptions checked(SessionOptions options, const Transport& transport) {
  check_common(common(options), transport);
  check_row_bytes("k", options.k, options.dtype);
  check_row_bytes("n", options.n, options.dtype);
  fill_timeouts(options.timeout_ns, options.warmup_timeout_ns);
  return options;
}

EngineOptions engine_options(const SessionOptions& options, uint64_t first_epoch) {
  EngineOptions engine = engine_options(common(options), text("session k=", options.k, " n=", options.n), first_epoch,
                                        options.record_timeline);
  engine.k = options.k;
  engine.n = options.n;
  return engine;
}

CheckedRun check_run(const SessionOptions& options, int32_t rank, const PlanData& plan, const RunArgs& args,
                     const TensorPlace& place) {
  check_mode(args.mode);
  check_plan_fits(options, rank, plan);
  CheckedRun run{.rows = {}, .weights = {}, .tokens = {}, .mode = args.mode};
  run.rows = check_tensor(args.rows, {.argument = "rows",
                                      .dtypes = {options.dtype},
                                      .shape = {-1, options.k},
                                      .shape_names = "[rows, K]",
                                      .device = place.device,
                                      .row_bytes = place.row_bytes});
  if (run.rows.shape[0] < plan.rows) {
    throw InvalidArgument(
        text("rows must hold the plan's ", plan.rows, " rows, got [", run.rows.shape[0], ", ", run.rows.shape[1], "]"));
  }
  run.tokens = check_tokens(args.topk_ids, args.topk_weights, args.out, options.dtype, options.top_k,
                            options.max_tokens, options.n, rank, place);
  refuse_overlap(run.tokens.out, run.rows, "rows");
  run.weights = check_weights(args.weights,
                              {.argument = "weights",
                               .dtype = options.dtype,
                               .shape = {options.placement.experts_on(rank), options.n, options.k},
                               .shape_names = "[experts on this rank, N, K]",
                               .place = place},
                              run.tokens.out);
  return run;
}

}  // namespace tileoverlap
