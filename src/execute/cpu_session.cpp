#include "execute/cpu_session.hpp"

#include "core/text.hpp"
#include "execute/cpu_engine.hpp"
#include "execute/session_checks.hpp"

namespace tileoverlap {
namespace {

class CpuSession final : public Session {
 public:
  CpuSession(const std::shared_ptr<Transport>& transport, const CpuOptions& cpu, const SessionOptions& options)
      : options_(checked(options, *transport)),
        engine_(transport, cpu, engine_options(options_, cpu.faults.first_epoch)) {}

  void run(const Plan& plan, const RunArgs& args) override {
    engine_.check();
    const CheckedRun run = check_run(options_, rank(), *plan, args);
    auto index = std::make_shared<CopyIndex>();
    fill_copy_index(plan, run.tokens.ids, *index);
    engine_.submit([this, plan, index, run] {
      if (!engine_.begin_call()) return;
      engine_.begin_epoch();
      engine_.return_rows({.plan = &*plan,
                           .index = index.get(),
                           .rows = run.rows.data,
                           .row_stride = run.rows.strides[0],
                           .weights = run.weights,
                           .topk_weights = run.tokens.weights,
                           .out = run.tokens.out,
                           .mode = run.mode});
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
  const SessionOptions options_;
  CpuEngine engine_;
};

}  // namespace

std::unique_ptr<Session> make_cpu_session(const std::shared_ptr<Transport>& transport, const CpuOptions& cpu,
                                          const SessionOptions& options) {
  return std::make_unique<CpuSession>(transport, cpu, options);
}

}  // namespace tileoverlap
