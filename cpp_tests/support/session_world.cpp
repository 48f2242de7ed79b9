#include "support/session_world.hpp"

namespace tileoverlap::testing {

SessionOptions session_options(const Scenario& scenario, const WorldSetup& setup) {
  return {.placement = scenario.placement,
          .dtype = scenario.dtype,
          .k = scenario.k,
          .n = scenario.n,
          .top_k = scenario.top_k,
          .max_tokens = setup.max_tokens >= 0 ? setup.max_tokens : scenario.most_tokens(),
          .plan = setup.plan,
          .timeout_ns = setup.timeout_ns,
          .warmup_timeout_ns = setup.warmup_timeout_ns,
          .record_timeline = setup.record_timeline};
}

SessionWorld::SessionWorld(const Scenario& scenario, const WorldSetup& setup)
    : options_(session_options(scenario, setup)) {
  const auto transports = make_in_process_world(scenario.world());
  for (int32_t rank = 0; rank < scenario.world(); ++rank) {
    sessions_.push_back(
        make_cpu_executor(transports[static_cast<size_t>(rank)], setup.cpu_of(rank))->prepare(options_));
  }
}

Call SessionWorld::make_call(const Scenario& scenario) const {
  Call call;
  for (int32_t rank = 0; rank < scenario.world(); ++rank) {
    call.rows.emplace_back(scenario.dtype, std::vector<int64_t>{0, scenario.k});
    call.outs.emplace_back(scenario.dtype, std::vector<int64_t>{0, scenario.n});
  }
  refill(scenario, call);
  return call;
}

void SessionWorld::refill(const Scenario& scenario, Call& call) const {
  const RouteCounts counts = counts_of(scenario);
  call.plans.clear();
  for (int32_t rank = 0; rank < scenario.world(); ++rank) {
    const auto r = static_cast<size_t>(rank);
    call.plans.push_back(make_plan(scenario.placement, rank, counts, scenario.n, options_.plan));
    fill_rows(scenario, call.plans[r], call.rows[r]);
    call.outs[r].set_rows(scenario.tokens(rank));
    call.outs[r].poison();
  }
}

RunArgs SessionWorld::args(const Scenario& scenario, const Call& call, int32_t rank, RunMode mode) {
  const auto r = static_cast<size_t>(rank);
  return {.rows = call.rows[r].arg(true),
          .weights = scenario.weights[r].arg(true),
          .topk_ids = scenario.ids[r].arg(true),
          .topk_weights = scenario.gates[r].arg(true),
          .out = call.outs[r].arg(),
          .mode = mode};
}

void SessionWorld::start(int32_t rank, const Scenario& scenario, const Call& call, RunMode mode) {
  session(rank).run(call.plans[static_cast<size_t>(rank)], args(scenario, call, rank, mode));
}

void SessionWorld::start_all(const Scenario& scenario, const Call& call, RunMode mode) {
  for (int32_t rank = 0; rank < size(); ++rank) start(rank, scenario, call, mode);
}

void SessionWorld::synchronize_all() {
  for (const auto& session : sessions_) session->synchronize();
}

std::vector<HostTensor> SessionWorld::run(const Scenario& scenario, RunMode mode) {
  Call call = make_call(scenario);
  start_all(scenario, call, mode);
  synchronize_all();
  return std::move(call.outs);
}

std::vector<HostTensor> run_once(const Scenario& scenario, const WorldSetup& setup, RunMode mode) {
  return SessionWorld(scenario, setup).run(scenario, mode);
}

}  // namespace tileoverlap::testing
