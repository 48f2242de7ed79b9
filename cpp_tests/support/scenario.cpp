#include "support/scenario.hpp"

#include <algorithm>
#include <cstring>

namespace tileoverlap::testing {
namespace {

void fill_randomly(Random& random, HostTensor& tensor) {
  for (int64_t i = 0; i < tensor.elements(); ++i) tensor.put(i, random.unit());
}

// Expert `expert`'s weights as float32, transposed to [k, n] so that the sum over k runs side by side.
std::vector<float> transposed_weights(const Scenario& scenario, int64_t expert) {
  const int32_t host = scenario.placement.rank_of(static_cast<int32_t>(expert));
  const HostTensor& weights = scenario.weights[static_cast<size_t>(host)];
  const int64_t first = (expert - scenario.placement.begin(host)) * scenario.n * scenario.k;
  std::vector<float> transposed(static_cast<size_t>(scenario.n * scenario.k));
  for (int64_t j = 0; j < scenario.n; ++j) {
    for (int64_t i = 0; i < scenario.k; ++i) {
      transposed[static_cast<size_t>(i * scenario.n + j)] = weights.get(first + j * scenario.k + i);
    }
  }
  return transposed;
}

// A float32 product that no compiler can fuse with the addition behind it: exact in double, then rounded once.
inline float product(float a, float b) { return static_cast<float>(static_cast<double>(a) * static_cast<double>(b)); }

}  // namespace

int64_t Scenario::most_tokens() const {
  int64_t most = 0;
  for (const HostTensor& rank_ids : ids) most = std::max(most, rank_ids.size(0));
  return most;
}

Scenario make_scenario(Random& random, const Shapes& shapes) {
  Scenario scenario;
  scenario.placement = shapes.placement;
  scenario.dtype = shapes.dtype;
  scenario.k = shapes.k;
  scenario.n = shapes.n;
  scenario.top_k = shapes.top_k;
  for (int32_t rank = 0; rank < scenario.world(); ++rank) {
    const int64_t tokens = shapes.tokens.at(static_cast<size_t>(rank));
    scenario.ids.emplace_back(random.chance(50) ? DType::kInt32 : DType::kInt64,
                              std::vector<int64_t>{tokens, shapes.top_k});
    scenario.gates.emplace_back(DType::kFloat32, std::vector<int64_t>{tokens, shapes.top_k});
    scenario.copies.emplace_back(shapes.dtype, std::vector<int64_t>{tokens * shapes.top_k, shapes.k});
    scenario.weights.emplace_back(shapes.dtype,
                                  std::vector<int64_t>{shapes.placement.experts_on(rank), shapes.n, shapes.k});
    fill_randomly(random, scenario.weights.back());
  }
  draw_tokens(random, scenario, shapes.tokens);
  return scenario;
}

void draw_tokens(Random& random, Scenario& scenario, const std::vector<int64_t>& tokens) {
  for (size_t rank = 0; rank < tokens.size(); ++rank) {
    scenario.ids[rank].set_rows(tokens[rank]);
    scenario.gates[rank].set_rows(tokens[rank]);
    scenario.copies[rank].set_rows(tokens[rank] * scenario.top_k);
    fill_randomly(random, scenario.gates[rank]);
    fill_randomly(random, scenario.copies[rank]);
    for (int64_t i = 0; i < scenario.ids[rank].elements(); ++i) {
      scenario.ids[rank].put(i, random.between(-1, scenario.placement.experts() - 1));
    }
  }
}

Shapes random_shapes(Random& random) {
  std::vector<int32_t> begins{0};
  for (int32_t rank = random.between32(1, 9); rank > 0; --rank) {
    begins.push_back(begins.back() + (random.chance(20) ? 0 : random.between32(1, 4)));
  }
  Shapes shapes{.placement = Placement::from_begins(begins),
                .dtype = random.chance(33)   ? DType::kFloat32
                         : random.chance(50) ? DType::kBFloat16
                                             : DType::kFloat16,
                .top_k = random.between32(1, 8)};
  const int64_t vector_elements = 16 / size_of(shapes.dtype);
  shapes.k = vector_elements * random.between(1, 5);
  shapes.n = vector_elements * random.between(1, 9);
  const bool nothing = random.chance(5);
  for (int32_t rank = 0; rank < shapes.placement.world(); ++rank) {
    shapes.tokens.push_back(nothing || random.chance(15) ? 0 : random.between(1, 24));
  }
  return shapes;
}

void set_ids(Scenario& scenario, int32_t rank, const std::vector<int64_t>& ids) {
  HostTensor& tensor = scenario.ids[static_cast<size_t>(rank)];
  for (size_t i = 0; i < ids.size(); ++i) tensor.put(static_cast<int64_t>(i), ids[i]);
}

void set_all_ids(Scenario& scenario, int64_t id) {
  for (HostTensor& tensor : scenario.ids) {
    for (int64_t i = 0; i < tensor.elements(); ++i) tensor.put(i, id);
  }
}

RouteCounts counts_of(const Scenario& scenario) {
  std::vector<TensorArg> args;
  for (const HostTensor& ids : scenario.ids) args.push_back(ids.arg());
  return count_routes(scenario.placement, args);
}

void fill_rows(const Scenario& scenario, const Plan& plan, HostTensor& rows) {
  rows.set_rows(plan->rows);
  rows.poison();
  const auto row_bytes = static_cast<size_t>(scenario.k * size_of(scenario.dtype));
  for (int32_t owner = 0; owner < scenario.world(); ++owner) {
    const HostTensor& ids = scenario.ids[static_cast<size_t>(owner)];
    std::vector<int64_t> next(static_cast<size_t>(scenario.placement.experts()), 0);
    for (int64_t copy = 0; copy < ids.elements(); ++copy) {
      const int64_t expert = ids.get_id(copy);
      if (expert < plan->placement.begin(plan->rank) || expert >= plan->placement.end(plan->rank)) continue;
      const int64_t row = plan.run(static_cast<int32_t>(expert), owner).row_begin + next[static_cast<size_t>(expert)]++;
      std::memcpy(rows.data() + static_cast<size_t>(row) * row_bytes,
                  scenario.copies[static_cast<size_t>(owner)].data() + static_cast<size_t>(copy) * row_bytes,
                  row_bytes);
    }
  }
}

void exact_result(const Scenario& scenario, int32_t rank, HostTensor& out) {
  const auto r = static_cast<size_t>(rank);
  const int64_t n = scenario.n, k = scenario.k, top_k = scenario.top_k;
  const HostTensor& ids = scenario.ids[r];
  out.set_rows(ids.size(0));
  std::vector<std::vector<float>> weights(static_cast<size_t>(scenario.placement.experts()));
  std::vector<float> row(static_cast<size_t>(n)), sum(static_cast<size_t>(n));
  for (int64_t token = 0; token < ids.size(0); ++token) {
    std::fill(sum.begin(), sum.end(), 0.0f);
    for (int64_t slot = 0; slot < top_k; ++slot) {
      const int64_t copy = token * top_k + slot;
      const int64_t expert = ids.get_id(copy);
      if (expert < 0) continue;
      std::vector<float>& transposed = weights[static_cast<size_t>(expert)];
      if (transposed.empty()) transposed = transposed_weights(scenario, expert);
      std::fill(row.begin(), row.end(), 0.0f);
      for (int64_t i = 0; i < k; ++i) {
        const float value = scenario.copies[r].get(copy * k + i);
        const float* column = transposed.data() + i * n;
        for (int64_t j = 0; j < n; ++j) row[static_cast<size_t>(j)] += product(value, column[j]);
      }
      const float gate = scenario.gates[r].get(copy);
      with_row_type(scenario.dtype, [&](auto zero) {
        for (float& value : row) value = to_float(from_float<decltype(zero)>(value));
      });
      for (size_t j = 0; j < row.size(); ++j) sum[j] += product(gate, row[j]);
    }
    for (int64_t j = 0; j < n; ++j) out.put(token * n + j, sum[static_cast<size_t>(j)]);
  }
}

std::vector<HostTensor> exact_results(const Scenario& scenario) {
  std::vector<HostTensor> results;
  for (int32_t rank = 0; rank < scenario.world(); ++rank) {
    results.emplace_back(scenario.dtype, std::vector<int64_t>{scenario.tokens(rank), scenario.n});
    exact_result(scenario, rank, results.back());
  }
  return results;
}

std::vector<double> fp64_result(const Scenario& scenario, int32_t rank) {
  const auto r = static_cast<size_t>(rank);
  const int64_t n = scenario.n, k = scenario.k;
  std::vector<double> result(static_cast<size_t>(scenario.tokens(rank) * n), 0.0);
  for (int64_t copy = 0; copy < scenario.ids[r].elements(); ++copy) {
    const int64_t expert = scenario.ids[r].get_id(copy);
    if (expert < 0) continue;
    const int32_t host = scenario.placement.rank_of(static_cast<int32_t>(expert));
    const HostTensor& weights = scenario.weights[static_cast<size_t>(host)];
    const int64_t first = (expert - scenario.placement.begin(host)) * n * k;
    for (int64_t j = 0; j < n; ++j) {
      double value = 0;
      for (int64_t i = 0; i < k; ++i) {
        value += double{scenario.copies[r].get(copy * k + i)} * double{weights.get(first + j * k + i)};
      }
      result[static_cast<size_t>(copy / scenario.top_k * n + j)] += double{scenario.gates[r].get(copy)} * value;
    }
  }
  return result;
}

}  // namespace tileoverlap::testing
