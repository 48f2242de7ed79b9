#include "core/text.hpp"
#include "execute/cuda_engine.hpp"
#include "execute/cuda_session.hpp"
#include "execute/layer_checks.hpp"

namespace tileoverlap {
namespace {

class CudaLayer final : public MoeLayer {
 public:
  CudaLayer(const std::shared_ptr<Transport>& transport, const CudaOptions& cuda, const LayerOptions& options)
      : options_(checked(options, *transport)),
        engine_(transport, cuda, engine_options(options_, cuda.faults.first_epoch)) {}

  // Planned on the device: nothing here waits for the GPU, and the host never sees an id.
  void forward(const LayerArgs& args) override {
    const auto lock = engine_.lock();
    engine_.check();
    const auto stream = static_cast<cudaStream_t>(args.stream);
    const DeviceGuard guard(engine_.place().device.device_id);
    CheckedCall call;
    try {
      call = check_call(options_, rank(), args, engine_.place());
    } catch (const Error& error) {
      // Peers have made this call, too: tell them, or they would wait for it until their limits.
      refuse(error.what(), stream);
      throw;
    }
    const DeviceReturn returned{
        .rows = has_first_projection(options_) ? engine_.projected_rows() : engine_.dispatched_rows(),
        .rows_there = engine_.rows(),
        .row_stride = options_.inner,
        .weights = call.down,
        .ids = call.tokens.ids,
        .topk_weights = call.tokens.weights,
        .out = call.tokens.out,
        .mode = call.mode};
    engine_.in_turn([&] {
      engine_.begin_call(stream);
      engine_.vote(call.tokens.ids, stream);
    });
    engine_.in_turn([&] {
      engine_.plan(stream);
      engine_.send_rows(call.x, call.tokens.ids, stream);
    });
    engine_.in_turn([&] {
      engine_.receive_rows(stream);
      engine_.first_projection(call.up, stream);
      engine_.return_rows(returned, stream);
    });
    engine_.in_turn([&] {
      engine_.reduce(returned, stream);
      engine_.end_call(stream);
    });
  }

  void synchronize() override { engine_.synchronize(); }
  bool wait(int64_t limit_ns) override { return engine_.wait(limit_ns); }
  void check() override { engine_.check(); }
  int32_t rank() const override { return engine_.rank(); }
  uint64_t epoch() const override { return engine_.epoch(); }
  const LayerOptions& options() const override { return options_; }
  SizeReport sizes() const override { return engine_.sizes(); }
  Timeline timeline() const override { return engine_.timeline(); }
  std::string repr() const override {
    return text("CudaMoeLayer(rank=", rank(), " of ", options_.placement.world(), ", dtype='", name(options_.dtype),
                "', expert='", name(options_.expert), "', hidden=", options_.hidden, ", inner=", options_.inner,
                ", top_k=", options_.top_k, ", max_tokens=", options_.max_tokens, ", ",
                tileoverlap::repr(options_.plan), ", ", engine_.device_text(), ", epoch=", epoch(), ")");
  }

 private:
  // The same stages as those of a call.
  void refuse(const std::string& reason, cudaStream_t stream) {
    engine_.in_turn([&] {
      engine_.begin_call(stream);
      engine_.refuse(reason, stream);
    });
    engine_.in_turn([&] { engine_.plan(stream); });
    engine_.in_turn([] {});
    engine_.in_turn([&] { engine_.end_call(stream); });
  }

  const LayerOptions options_;
  CudaEngine engine_;
};

}  // namespace

std::unique_ptr<MoeLayer> make_cuda_layer(const std::shared_ptr<Transport>& transport, const CudaOptions& cuda,
                                          const LayerOptions& options) {
  return std::make_unique<CudaLayer>(transport, cuda, options);
}

}  // namespace tileoverlap
