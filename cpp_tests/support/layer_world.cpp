#include "support/layer_world.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace tileoverlap::testing {
namespace {

int64_t x_width(const LayerShapes& shapes) {
  return shapes.expert == ExpertKind::kSingle ? shapes.inner : shapes.hidden;
}
int64_t up_width(const LayerShapes& shapes) {
  return shapes.expert == ExpertKind::kSiluGate ? 2 * shapes.inner : shapes.inner;
}

void fill_randomly(Random& random, HostTensor& tensor, float scale) {
  for (int64_t i = 0; i < tensor.elements(); ++i) tensor.put(i, random.unit() * scale);
}

// weights[row] . x, row of a [?, width] matrix that begins at element `begin`.
double dot(const HostTensor& weights, int64_t begin, int64_t row, const std::vector<double>& x) {
  double sum = 0;
  for (size_t i = 0; i < x.size(); ++i)
    sum += double{weights.get(begin + row * static_cast<int64_t>(x.size()) + static_cast<int64_t>(i))} * x[i];
  return sum;
}

// The row that the returned projection sees.
std::vector<double> inner_row(const LayerInputs& inputs, size_t host, int64_t local, const std::vector<double>& x) {
  const LayerShapes& shapes = inputs.shapes;
  if (shapes.expert == ExpertKind::kSingle) return x;
  const HostTensor& up = inputs.up[host];
  const int64_t begin = local * up_width(shapes) * shapes.hidden;
  std::vector<double> row;
  for (int64_t i = 0; i < shapes.inner; ++i) {
    const double first = dot(up, begin, i, x);
    if (shapes.expert == ExpertKind::kGelu) {
      row.push_back(first / 2 * (1 + std::erf(first / std::numbers::sqrt2)));
    } else {
      row.push_back(first / (1 + std::exp(-first)) * dot(up, begin, shapes.inner + i, x));  // gate first
    }
  }
  return row;
}

}  // namespace

LayerInputs make_layer_inputs(Random& random, const LayerShapes& shapes) {
  LayerInputs inputs{.shapes = shapes, .x = {}, .ids = {}, .gates = {}, .up = {}, .down = {}};
  for (int32_t rank = 0; rank < shapes.placement.world(); ++rank) {
    const int64_t tokens = shapes.tokens.at(static_cast<size_t>(rank));
    const int64_t experts = shapes.placement.experts_on(rank);
    inputs.x.emplace_back(shapes.dtype, std::vector<int64_t>{tokens, x_width(shapes)});
    inputs.ids.emplace_back(random.chance(50) ? DType::kInt32 : DType::kInt64,
                            std::vector<int64_t>{tokens, shapes.top_k});
    inputs.gates.emplace_back(DType::kFloat32, std::vector<int64_t>{tokens, shapes.top_k});
    inputs.up.emplace_back(shapes.dtype, std::vector<int64_t>{experts, up_width(shapes), shapes.hidden});
    inputs.down.emplace_back(shapes.dtype, std::vector<int64_t>{experts, shapes.hidden, shapes.inner});
    fill_randomly(random, inputs.up.back(), 0.5f);
    fill_randomly(random, inputs.down.back(), 0.5f);
  }
  draw_layer_tokens(random, inputs, shapes.tokens);
  return inputs;
}

void draw_layer_tokens(Random& random, LayerInputs& inputs, const std::vector<int64_t>& tokens) {
  for (size_t rank = 0; rank < tokens.size(); ++rank) {
    inputs.x[rank].set_rows(tokens[rank]);
    inputs.ids[rank].set_rows(tokens[rank]);
    inputs.gates[rank].set_rows(tokens[rank]);
    fill_randomly(random, inputs.x[rank], 1);
    fill_randomly(random, inputs.gates[rank], 1);
    for (int64_t i = 0; i < inputs.ids[rank].elements(); ++i) {
      inputs.ids[rank].put(i, random.between(-1, inputs.shapes.placement.experts() - 1));
    }
  }
}

std::vector<double> fp64_layer_result(const LayerInputs& inputs, int32_t rank) {
  const LayerShapes& shapes = inputs.shapes;
  const auto r = static_cast<size_t>(rank);
  const int64_t width = x_width(shapes);
  std::vector<double> result(static_cast<size_t>(inputs.ids[r].size(0) * shapes.hidden), 0.0);
  for (int64_t copy = 0; copy < inputs.ids[r].elements(); ++copy) {
    const auto expert = static_cast<int32_t>(inputs.ids[r].get_id(copy));
    if (expert < 0) continue;
    const int64_t token = copy / shapes.top_k;
    const auto host = static_cast<size_t>(shapes.placement.rank_of(expert));
    const int64_t local = expert - shapes.placement.begin(static_cast<int32_t>(host));
    std::vector<double> x;
    for (int64_t i = 0; i < width; ++i) x.push_back(inputs.x[r].get(token * width + i));
    const std::vector<double> row = inner_row(inputs, host, local, x);
    for (int64_t j = 0; j < shapes.hidden; ++j) {
      result[static_cast<size_t>(token * shapes.hidden + j)] +=
          double{inputs.gates[r].get(copy)} * dot(inputs.down[host], local * shapes.hidden * shapes.inner, j, row);
    }
  }
  return result;
}

Scenario as_scenario(const LayerInputs& inputs) {
  const LayerShapes& shapes = inputs.shapes;
  Scenario scenario;
  scenario.placement = shapes.placement;
  scenario.dtype = shapes.dtype;
  scenario.k = shapes.inner;
  scenario.n = shapes.hidden;
  scenario.top_k = shapes.top_k;
  for (size_t rank = 0; rank < inputs.x.size(); ++rank) {
    scenario.ids.push_back(inputs.ids[rank].clone());
    scenario.gates.push_back(inputs.gates[rank].clone());
    scenario.weights.push_back(inputs.down[rank].clone());
    const int64_t copies = inputs.ids[rank].elements();
    scenario.copies.emplace_back(shapes.dtype, std::vector<int64_t>{copies, shapes.inner});
    for (int64_t i = 0; i < copies * shapes.inner; ++i) {
      const int64_t token = i / shapes.inner / shapes.top_k;
      scenario.copies.back().put(i, inputs.x[rank].get(token * shapes.inner + i % shapes.inner));
    }
  }
  return scenario;
}

LayerOptions layer_options(const LayerInputs& inputs, const WorldSetup& setup) {
  int64_t most = 0;
  for (const HostTensor& ids : inputs.ids) most = std::max(most, ids.size(0));
  return {.placement = inputs.shapes.placement,
          .dtype = inputs.shapes.dtype,
          .expert = inputs.shapes.expert,
          .hidden = inputs.shapes.hidden,
          .inner = inputs.shapes.inner,
          .top_k = inputs.shapes.top_k,
          .max_tokens = setup.max_tokens >= 0 ? setup.max_tokens : most,
          .plan = setup.plan,
          .timeout_ns = setup.timeout_ns,
          .warmup_timeout_ns = setup.warmup_timeout_ns,
          .record_timeline = setup.record_timeline};
}

LayerWorld::LayerWorld(const LayerInputs& inputs, const WorldSetup& setup) {
  const auto transports = make_in_process_world(inputs.shapes.placement.world());
  for (size_t rank = 0; rank < transports.size(); ++rank) {
    layers_.push_back(make_cpu_executor(transports[rank], setup.cpu_of(static_cast<int32_t>(rank)))
                          ->prepare_layer(layer_options(inputs, setup)));
  }
}

std::vector<HostTensor> LayerWorld::make_outs(const LayerInputs& inputs) {
  std::vector<HostTensor> outs;
  for (const HostTensor& ids : inputs.ids) {
    outs.emplace_back(inputs.shapes.dtype, std::vector<int64_t>{ids.size(0), inputs.shapes.hidden});
    outs.back().poison();
  }
  return outs;
}

LayerArgs LayerWorld::args(const LayerInputs& inputs, const std::vector<HostTensor>& outs, int32_t rank, RunMode mode) {
  const auto r = static_cast<size_t>(rank);
  return {.x = inputs.x[r].arg(true),
          .topk_ids = inputs.ids[r].arg(true),
          .topk_weights = inputs.gates[r].arg(true),
          .up = inputs.shapes.expert == ExpertKind::kSingle ? TensorArg() : inputs.up[r].arg(true),
          .down = inputs.down[r].arg(true),
          .out = outs[r].arg(),
          .mode = mode};
}

void LayerWorld::start(int32_t rank, const LayerInputs& inputs, const std::vector<HostTensor>& outs, RunMode mode) {
  layer(rank).forward(args(inputs, outs, rank, mode));
}

void LayerWorld::synchronize_all() {
  for (const auto& layer : layers_) layer->synchronize();
}

std::vector<HostTensor> LayerWorld::run(const LayerInputs& inputs, RunMode mode) {
  auto outs = make_outs(inputs);
  for (int32_t rank = 0; rank < size(); ++rank) start(rank, inputs, outs, mode);
  synchronize_all();
  return outs;
}

}  // namespace tileoverlap::testing
