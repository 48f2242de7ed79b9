#include "execute/cpu_session.hpp"

#include "core/text.hpp"
#include "execute/checks.hpp"
#include "execute/cpu_engine.hpp"

namespace tileoverlap {
namespace {

SessionOptions checked(SessionOptions options, const Transport& transport) {
  check_common(common(options), transport);
  check_row_bytes("k", options.k, options.dtype);
  check_row_bytes("n", options.n, options.dtype);
  fill_timeouts(options.timeout_ns, options.warmup_timeout_ns);
  return options;
}

EngineOptions engine_options(const SessionOptions& options, const CpuFaults& faults) {
  EngineOptions engine =
      engine_options(common(options), text("session k=", options.k, " n=", options.n), faults, options.record_timeline);
  engine.k = options.k;
  engine.n = options.n;
  return engine;
}

class CpuSession final : public Session {
 public:
  CpuSession(const std::shared_ptr<Transport>& transport, const CpuOptions& cpu, const SessionOptions& options)
      : options_(checked(options, *transport)), engine_(transport, cpu, engine_options(options_, cpu.faults)) {}

  void run(const Plan& plan, const RunArgs& args) override {
    engine_.check();
    check_mode(args.mode);
    check_plan_fits(*plan);
    const TensorView rows = check_tensor(
        args.rows,
        {.argument = "rows", .dtypes = {options_.dtype}, .shape = {-1, options_.k}, .shape_names = "[rows, K]"});
    if (rows.shape[0] < plan->rows) {
      throw InvalidArgument(
          text("rows must hold the plan's ", plan->rows, " rows, got [", rows.shape[0], ", ", rows.shape[1], "]"));
    }
    const TensorView weights =
        check_tensor(args.weights, {.argument = "weights",
                                    .dtypes = {options_.dtype},
                                    .shape = {options_.placement.experts_on(rank()), options_.n, options_.k},
                                    .shape_names = "[experts on this rank, N, K]"});
    const TokenTensors tokens = check_tokens(args.topk_ids, args.topk_weights, args.out, options_.dtype, options_.top_k,
                                             options_.max_tokens, options_.n, rank());
    refuse_overlap(tokens.out, rows, "rows");
    refuse_overlap(tokens.out, weights, "weights");
    auto index = std::make_shared<CopyIndex>();
    fill_copy_index(plan, tokens.ids, *index);
    engine_.submit([this, plan, index, rows, weights, tokens, mode = args.mode] {
      if (!engine_.begin_call()) return;
      engine_.begin_epoch();
      engine_.return_rows({.plan = &*plan,
                           .index = index.get(),
                           .rows = rows.data,
                           .row_stride = rows.strides[0],
                           .weights = weights,
                           .topk_weights = tokens.weights,
                           .out = tokens.out,
                           .mode = mode});
    });
  }

  void synchronize() override { engine_.synchronize(); }
  bool wait(int64_t limit_ns) override { return engine_.wait(limit_ns); }
  void check() override { engine_.check(); }
  int32_t rank() const override { return engine_.rank(); }
  uint64_t epoch() const override { return engine_.epoch(); }
  const SessionOptions& options() const override { return options_; }
  SizeReport sizes() const override { return engine_.sizes(); }
  Timeline timeline() const override { return engine_.timeline(); }
  std::string repr() const override {
    return text("CpuSession(rank=", rank(), " of ", options_.placement.world(), ", dtype='", name(options_.dtype),
                "', k=", options_.k, ", n=", options_.n, ", top_k=", options_.top_k,
                ", max_tokens=", options_.max_tokens, ", ", tileoverlap::repr(options_.plan), ", epoch=", epoch(), ")");
  }

 private:
  // A plan carries the sizes that it was made for; a kernel of other sizes would read the wrong rows.
  void check_plan_fits(const PlanData& plan) const {
    const auto differ = [](const char* what, const auto& of_plan, const auto& of_session) {
      if (of_plan != of_session) {
        throw InvalidArgument(text("the plan has ", what, " = ", of_plan, ", the session ", what, " = ", of_session));
      }
    };
    differ("rank", plan.rank, rank());
    differ("placement", plan.placement.repr(), options_.placement.repr());
    differ("n", int64_t{plan.n}, options_.n);
    differ("tile_m", plan.options.tile_m, options_.plan.tile_m);
    differ("tile_n", plan.options.tile_n, options_.plan.tile_n);
    differ("layout", std::string(name(plan.options.layout)), std::string(name(options_.plan.layout)));
    const int64_t most = options_.max_tokens * options_.top_k;
    for (size_t owner = 0; owner < plan.copies_of.size(); ++owner) {
      if (plan.copies_of[owner] > most) {
        throw CapacityError(text("rank ", owner, " sends ", plan.copies_of[owner],
                                 " copies, the session holds max_tokens * top_k = ", options_.max_tokens, " * ",
                                 options_.top_k, " = ", most));
      }
    }
  }

  const SessionOptions options_;
  CpuEngine engine_;
};

}  // namespace

std::unique_ptr<Session> make_cpu_session(const std::shared_ptr<Transport>& transport, const CpuOptions& cpu,
                                          const SessionOptions& options) {
  return std::make_unique<CpuSession>(transport, cpu, options);
}

}  // namespace tileoverlap
