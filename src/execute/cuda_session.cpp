#include "execute/cuda_session.hpp"

#include "core/text.hpp"
#include "execute/cuda_engine.hpp"
#include "execute/session_checks.hpp"

namespace tileoverlap {
namespace {

class CudaSession final : public Session {
 public:
  CudaSession(const std::shared_ptr<Transport>& transport, const CudaOptions& cuda, const SessionOptions& options)
      : options_(checked(options, *transport)),
        engine_(transport, cuda, engine_options(options_, cuda.faults.first_epoch)) {}

  void run(const Plan& plan, const RunArgs& args) override {
    const auto lock = engine_.lock();
    engine_.check();
    const CheckedRun run = check_run(options_, rank(), *plan, args, engine_.place());
    const auto stream = static_cast<cudaStream_t>(args.stream);
    const DeviceGuard guard(engine_.place().device.device_id);
    engine_.refuse_capture(stream, "a session's plan lies on the host and would be frozen; capture a layer instead");
    const DeviceReturn call{.rows = run.rows.data,
                            .rows_there = run.rows.shape[0],
                            .row_stride = run.rows.strides[0],
                            .weights = run.weights,
                            .ids = run.tokens.ids,
                            .topk_weights = run.tokens.weights,
                            .out = run.tokens.out,
                            .mode = run.mode};
    engine_.in_turn([&] {
      engine_.begin_call(stream);
      engine_.upload(plan, stream);
      engine_.return_rows(call, stream);
    });
    engine_.in_turn([&] {
      engine_.reduce(call, stream);
      engine_.end_call(stream);
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
    return text("CudaSession(rank=", rank(), " of ", options_.placement.world(), ", dtype='", name(options_.dtype),
                "', k=", options_.k, ", n=", options_.n, ", top_k=", options_.top_k,
                ", max_tokens=", options_.max_tokens, ", ", tileoverlap::repr(options_.plan), ", ",
                engine_.device_text(), ", epoch=", epoch(), ")");
  }

 private:
  const SessionOptions options_;
  CudaEngine engine_;
};

}  // namespace

std::unique_ptr<Session> make_cuda_session(const std::shared_ptr<Transport>& transport, const CudaOptions& cuda,
                                           const SessionOptions& options) {
  return std::make_unique<CudaSession>(transport, cuda, options);
}

}  // namespace tileoverlap
