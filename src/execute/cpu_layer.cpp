#include <optional>

#include "core/text.hpp"
#include "execute/cpu_engine.hpp"
#include "execute/cpu_session.hpp"
#include "execute/layer_checks.hpp"
#include "transport/call_vote.hpp"

namespace tileoverlap {
namespace {

class CpuLayer final : public MoeLayer {
 public:
  CpuLayer(const std::shared_ptr<Transport>& transport, const CpuOptions& cpu, const LayerOptions& options)
      : options_(checked(options, *transport)),
        engine_(transport, cpu, engine_options(options_, cpu.faults.first_epoch)) {
    index_.reserve(options_.max_tokens, options_.top_k);
  }

  void forward(const LayerArgs& args) override {
    engine_.check();
    try {
      const CheckedCall call = check_call(options_, rank(), args);
      CallVote vote{.counts = count_ids(options_.placement, rank(), args.topk_ids), .refusal = {}};
      engine_.submit([this, call, vote = std::move(vote)] { run_call(call, vote); });
    } catch (const Error& error) {
      // Peers have made this call, too: tell them, or they would wait for it until their limits.
      engine_.submit([this, vote = CallVote{.counts = {}, .refusal = error.what()}] {
        if (engine_.begin_call()) engine_.exchange().post(vote.encode());
      });
      throw;
    }
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
    return text("CpuMoeLayer(rank=", rank(), " of ", options_.placement.world(), ", dtype='", name(options_.dtype),
                "', expert='", name(options_.expert), "', hidden=", options_.hidden, ", inner=", options_.inner,
                ", top_k=", options_.top_k, ", max_tokens=", options_.max_tokens, ", ",
                tileoverlap::repr(options_.plan), ", epoch=", epoch(), ")");
  }

 private:
  // All ranks' counts, row by row; empty when the call has failed. Throws CallRefused when a rank refuses.
  std::vector<int32_t> vote_on_call(const CallVote& mine) {
    if (!engine_.begin_call()) return {};
    Watch& watch = engine_.watch();
    int32_t closed = -1;  // the peer that has gone without a vote
    std::vector<std::vector<std::byte>> messages;
    try {
      messages = engine_.exchange().all_gather(mine.encode(), watch.limit_ns(), [&](int32_t missing) {
        closed = watch.peer_closed(missing) ? missing : -1;
        return closed >= 0 || watch.stopped();
      });
    } catch (const WaitTimeout& timeout) {
      WaitRecord record = timeout.record();
      record.epoch = epoch() + 1;  // the exchange counts refused calls, too
      watch.fail(record);
      return {};
    }
    if (messages.empty()) {
      if (!watch.stopped()) watch.fail_closed(closed);
      return {};
    }
    return collect_counts(messages, rank(), options_.placement.experts());
  }

  void run_call(const CheckedCall& call, const CallVote& vote) {
    Recorder& recorder = engine_.recorder();
    const int64_t begin = now_ns();
    std::vector<int32_t> gathered = vote_on_call(vote);
    if (engine_.watch().stopped()) return;
    engine_.begin_epoch();
    recorder.add({Span::kCounts, rank(), CpuEngine::kDriver, -1, -1, begin, now_ns()});
    std::optional<Plan> plan;
    recorder.span(CpuEngine::kDriver, Span::kPlan, -1, -1, [&] {
      const RouteCounts counts(options_.placement, std::move(gathered));
      plan = make_plan(options_.placement, rank(), counts, options_.hidden, options_.plan);
      fill_copy_index(*plan, call.tokens.ids, index_);
    });
    if (!engine_.dispatch(**plan, index_, call.x)) return;
    if (has_first_projection(options_)) engine_.first_projection(**plan, call.up);
    engine_.return_rows({.plan = &**plan,
                         .index = &index_,
                         .rows = has_first_projection(options_) ? engine_.projected_rows() : engine_.dispatched_rows(),
                         .row_stride = options_.inner,
                         .weights = call.down,
                         .topk_weights = call.tokens.weights,
                         .out = call.tokens.out,
                         .mode = call.mode});
  }

  const LayerOptions options_;
  CopyIndex index_;  // of the call at hand; outlives the engine, whose thread uses it
  CpuEngine engine_;
};

}  // namespace

std::unique_ptr<MoeLayer> make_cpu_layer(const std::shared_ptr<Transport>& transport, const CpuOptions& cpu,
                                         const LayerOptions& options) {
  return std::make_unique<CpuLayer>(transport, cpu, options);
}

}  // namespace tileoverlap
