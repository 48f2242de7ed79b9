#include "support/gpu_world.hpp"

namespace tileoverlap::testing {
namespace {

WorldSetup on_cpu(const GpuSetup& setup) {
  WorldSetup cpu;
  cpu.plan = setup.plan;
  cpu.max_tokens = setup.max_tokens;
  cpu.timeout_ns = setup.timeout_ns;
  cpu.record_timeline = setup.record_timeline;
  return cpu;
}

std::vector<DeviceTensor> uploaded(const std::vector<HostTensor>& tensors) {
  std::vector<DeviceTensor> result;
  for (const HostTensor& tensor : tensors) result.emplace_back(tensor);
  return result;
}

std::vector<HostTensor> downloaded(const std::vector<DeviceTensor>& tensors) {
  std::vector<HostTensor> result;
  for (const DeviceTensor& tensor : tensors) result.push_back(tensor.download());
  return result;
}

std::vector<std::shared_ptr<Transport>> transports_of(const GpuSetup& setup, int32_t world) {
  if (!setup.transports.empty()) return setup.transports;
  return make_device_world(std::vector<int32_t>(static_cast<size_t>(world), 0));
}

}  // namespace

GpuSessionWorld::GpuSessionWorld(const Scenario& scenario, const GpuSetup& setup)
    : options_(session_options(scenario, on_cpu(setup))) {
  const auto transports = transports_of(setup, scenario.world());
  for (int32_t rank = 0; rank < scenario.world(); ++rank) {
    streams_.push_back(std::make_unique<CudaStream>());
    sessions_.push_back(
        make_cuda_executor(transports[static_cast<size_t>(rank)], setup.cuda_of(rank))->prepare(options_));
  }
}

GpuCall GpuSessionWorld::make_call(const Scenario& scenario) const {
  GpuCall call;
  const RouteCounts counts = counts_of(scenario);
  for (int32_t rank = 0; rank < size(); ++rank) {
    call.plans.push_back(make_plan(options_.placement, rank, counts, options_.n, options_.plan));
    const int64_t rows =
        max_rows(options_.placement, rank, {options_.max_tokens, options_.top_k, false}, options_.plan);
    call.rows.emplace_back(options_.dtype, std::vector<int64_t>{rows, options_.k});
    call.outs.emplace_back(options_.dtype, std::vector<int64_t>{options_.max_tokens, options_.n});
    call.ids.emplace_back(scenario.ids[static_cast<size_t>(rank)].dtype(),
                          std::vector<int64_t>{options_.max_tokens, options_.top_k});
    call.gates.emplace_back(DType::kFloat32, std::vector<int64_t>{options_.max_tokens, options_.top_k});
  }
  call.weights = uploaded(scenario.weights);
  refill(scenario, call);
  return call;
}

void GpuSessionWorld::refill(const Scenario& scenario, GpuCall& call) const {
  const RouteCounts counts = counts_of(scenario);
  call.plans.clear();
  for (int32_t rank = 0; rank < size(); ++rank) {
    const auto r = static_cast<size_t>(rank);
    call.plans.push_back(make_plan(options_.placement, rank, counts, options_.n, options_.plan));
    HostTensor rows(options_.dtype, {0, options_.k});
    fill_rows(scenario, call.plans.back(), rows);
    call.rows[r].upload(rows);
    call.ids[r].upload(scenario.ids[r]);
    call.gates[r].upload(scenario.gates[r]);
    HostTensor out(options_.dtype, {scenario.tokens(rank), options_.n});
    out.poison();
    call.outs[r].upload(out);
  }
}

RunArgs GpuSessionWorld::args(const GpuCall& call, int32_t rank, RunMode mode) {
  const auto r = static_cast<size_t>(rank);
  return {.rows = call.rows[r].arg(true),
          .weights = call.weights[r].arg(true),
          .topk_ids = call.ids[r].arg(true),
          .topk_weights = call.gates[r].arg(true),
          .out = call.outs[r].arg(),
          .mode = mode,
          .stream = stream(rank)};
}

void GpuSessionWorld::start(int32_t rank, const GpuCall& call, RunMode mode) {
  session(rank).run(call.plans[static_cast<size_t>(rank)], args(call, rank, mode));
}

void GpuSessionWorld::start_all(const GpuCall& call, RunMode mode) {
  for (int32_t rank = 0; rank < size(); ++rank) start(rank, call, mode);
}

void GpuSessionWorld::synchronize_all() {
  for (const auto& session : sessions_) session->synchronize();
}

std::vector<HostTensor> GpuSessionWorld::outs(const GpuCall& call) { return downloaded(call.outs); }

std::vector<HostTensor> GpuSessionWorld::run(const Scenario& scenario, RunMode mode) {
  const GpuCall call = make_call(scenario);
  start_all(call, mode);
  synchronize_all();
  return outs(call);
}

std::vector<HostTensor> run_on_gpu(const Scenario& scenario, const GpuSetup& setup, RunMode mode) {
  return GpuSessionWorld(scenario, setup).run(scenario, mode);
}

GpuLayerWorld::GpuLayerWorld(const LayerInputs& inputs, const GpuSetup& setup) {
  const int32_t world = inputs.shapes.placement.world();
  const auto transports = transports_of(setup, world);
  for (int32_t rank = 0; rank < world; ++rank) {
    streams_.push_back(std::make_unique<CudaStream>());
    layers_.push_back(make_cuda_executor(transports[static_cast<size_t>(rank)], setup.cuda_of(rank))
                          ->prepare_layer(layer_options(inputs, on_cpu(setup))));
  }
}

GpuLayerCall GpuLayerWorld::make_call(const LayerInputs& inputs) {
  GpuLayerCall call;
  call.x = uploaded(inputs.x);
  call.ids = uploaded(inputs.ids);
  call.gates = uploaded(inputs.gates);
  call.up = uploaded(inputs.up);
  call.down = uploaded(inputs.down);
  call.outs = uploaded(LayerWorld::make_outs(inputs));
  return call;
}

void GpuLayerWorld::refill(const LayerInputs& inputs, GpuLayerCall& call) {
  const auto outs = LayerWorld::make_outs(inputs);
  for (size_t rank = 0; rank < inputs.x.size(); ++rank) {
    call.x[rank].upload(inputs.x[rank]);
    call.ids[rank].upload(inputs.ids[rank]);
    call.gates[rank].upload(inputs.gates[rank]);
    call.outs[rank].upload(outs[rank]);
  }
}

LayerArgs GpuLayerWorld::args(const GpuLayerCall& call, int32_t rank, RunMode mode) {
  const auto r = static_cast<size_t>(rank);
  const bool single = layer(rank).options().expert == ExpertKind::kSingle;
  return {.x = call.x[r].arg(true),
          .topk_ids = call.ids[r].arg(true),
          .topk_weights = call.gates[r].arg(true),
          .up = single ? TensorArg() : call.up[r].arg(true),
          .down = call.down[r].arg(true),
          .out = call.outs[r].arg(),
          .mode = mode,
          .stream = stream(rank)};
}

void GpuLayerWorld::start(int32_t rank, const GpuLayerCall& call, RunMode mode) {
  layer(rank).forward(args(call, rank, mode));
}

void GpuLayerWorld::start_all(const GpuLayerCall& call, RunMode mode) {
  for (int32_t rank = 0; rank < size(); ++rank) start(rank, call, mode);
}

void GpuLayerWorld::synchronize_all() {
  for (const auto& layer : layers_) layer->synchronize();
}

std::vector<HostTensor> GpuLayerWorld::outs(const GpuLayerCall& call) { return downloaded(call.outs); }

std::vector<HostTensor> GpuLayerWorld::run(const LayerInputs& inputs, RunMode mode) {
  const GpuLayerCall call = make_call(inputs);
  start_all(call, mode);
  synchronize_all();
  return outs(call);
}

}  // namespace tileoverlap::testing
