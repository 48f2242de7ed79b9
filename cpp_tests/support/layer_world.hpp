#pragma once
// All ranks of an in-process world with one layer each, driven by one thread.

#include <cstdint>
#include <memory>
#include <vector>

#include "support/host_tensor.hpp"
#include "support/random.hpp"
#include "support/session_world.hpp"
#include "tileoverlap/execute/cpu_executor.hpp"

namespace tileoverlap::testing {

struct LayerShapes {
  Placement placement = Placement::even(1, 1);
  DType dtype = DType::kBFloat16;
  ExpertKind expert = ExpertKind::kSingle;
  int64_t hidden = 32, inner = 16;
  int32_t top_k = 1;
  std::vector<int64_t> tokens = {};  // by rank
};

// Inputs of one call on all ranks, one tensor a rank.
struct LayerInputs {
  LayerShapes shapes;
  std::vector<HostTensor> x, ids, gates, up, down;
};

LayerInputs make_layer_inputs(Random& random, const LayerShapes& shapes);
void draw_layer_tokens(Random& random, LayerInputs& inputs, const std::vector<int64_t>& tokens);

// What the layer computes, in double without any rounding, [T * hidden].
std::vector<double> fp64_layer_result(const LayerInputs& inputs, int32_t rank);

// The session's view of a kSingle layer: every copy's row is its token's.
Scenario as_scenario(const LayerInputs& inputs);

class LayerWorld {
 public:
  LayerWorld(const LayerInputs& inputs, const WorldSetup& setup);

  int32_t size() const { return static_cast<int32_t>(layers_.size()); }
  MoeLayer& layer(int32_t rank) { return *layers_[static_cast<size_t>(rank)]; }
  void close(int32_t rank) { layers_[static_cast<size_t>(rank)].reset(); }

  static std::vector<HostTensor> make_outs(const LayerInputs& inputs);  // NaN
  static LayerArgs args(const LayerInputs& inputs, const std::vector<HostTensor>& outs, int32_t rank,
                        RunMode mode = RunMode::kOverlapped);
  void start(int32_t rank, const LayerInputs& inputs, const std::vector<HostTensor>& outs,
             RunMode mode = RunMode::kOverlapped);
  void synchronize_all();
  std::vector<HostTensor> run(const LayerInputs& inputs, RunMode mode = RunMode::kOverlapped);

 private:
  std::vector<std::unique_ptr<MoeLayer>> layers_;
};

LayerOptions layer_options(const LayerInputs& inputs, const WorldSetup& setup);

}  // namespace tileoverlap::testing
