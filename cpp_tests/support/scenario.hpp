#pragma once
// Inputs of one run on all ranks, and what must come out.

#include <cstdint>
#include <vector>

#include "support/host_tensor.hpp"
#include "support/random.hpp"
#include "tileoverlap/plan/plan.hpp"

namespace tileoverlap::testing {

struct Shapes {
  Placement placement = Placement::even(1, 1);
  DType dtype = DType::kBFloat16;
  int64_t k = 16, n = 16;
  int32_t top_k = 1;
  std::vector<int64_t> tokens = {};  // by rank
};

// Every copy has a row of its own, not its token's: a mix-up of two slots of one token changes the result.
struct Scenario {
  Placement placement = Placement::even(1, 1);
  DType dtype = DType::kBFloat16;
  int64_t k = 0, n = 0;
  int32_t top_k = 0;
  std::vector<HostTensor> ids;      // by rank, [T, top_k]
  std::vector<HostTensor> gates;    // by rank, [T, top_k] float32
  std::vector<HostTensor> copies;   // by rank, [T * top_k, k]: the row of each (token, slot)
  std::vector<HostTensor> weights;  // by rank, [experts on the rank, n, k]

  int32_t world() const { return placement.world(); }
  int64_t tokens(int32_t rank) const { return ids[static_cast<size_t>(rank)].size(0); }
  int64_t most_tokens() const;
};

// Random rows, weights and gates; ids are drawn evenly, -1 among them, the same expert twice as well.
Scenario make_scenario(Random& random, const Shapes& shapes);
// The same shapes and expert weights with new tokens: another call of the same layer. Allocates nothing new where
// `tokens` are no more than before.
void draw_tokens(Random& random, Scenario& scenario, const std::vector<int64_t>& tokens);
// A random shape of everything: uneven experts, empty ranks, sizes that do not divide.
Shapes random_shapes(Random& random);

void set_ids(Scenario& scenario, int32_t rank, const std::vector<int64_t>& ids);
void set_all_ids(Scenario& scenario, int64_t id);

RouteCounts counts_of(const Scenario& scenario);

// Rows of one rank in the order of its plan; rows that nobody was routed to are NaN.
void fill_rows(const Scenario& scenario, const Plan& plan, HostTensor& rows);

// By definition: a returned row is the float32 sum over k, ascending, rounded to the dtype; a token's result is the
// float32 sum over its slots in order of gate * row, starting from zero, rounded to the dtype.
void exact_result(const Scenario& scenario, int32_t rank, HostTensor& out);
std::vector<HostTensor> exact_results(const Scenario& scenario);

// The same in double without any rounding, [T * n].
std::vector<double> fp64_result(const Scenario& scenario, int32_t rank);

}  // namespace tileoverlap::testing
