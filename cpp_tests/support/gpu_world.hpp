#pragma once
// Virtual ranks on one GPU: W sessions or layers, each with a stream of its own, driven by one thread.

#include <cstdint>
#include <memory>
#include <vector>

#include "support/device_tensor.hpp"
#include "support/layer_world.hpp"
#include "support/scenario.hpp"
#include "support/session_world.hpp"
#include "tileoverlap/execute/cuda_executor.hpp"
#include "tileoverlap/transport/device_world.hpp"

namespace tileoverlap::testing {

struct GpuSetup {
  PlanOptions plan = {.tile_m = 128, .tile_n = 128};
  std::vector<CudaOptions> cuda = std::vector<CudaOptions>(1);  // one for all ranks, or one a rank
  int64_t max_tokens = -1;                                      // -1: the scenario's
  int64_t timeout_ns = kNoLimitReached;
  bool record_timeline = false;
  std::vector<std::shared_ptr<Transport>> transports = {};  // by rank; none: a device world on the first GPU

  CudaOptions cuda_of(int32_t rank) const { return cuda.size() == 1 ? cuda[0] : cuda.at(static_cast<size_t>(rank)); }
};

struct CudaStream {
  CudaStream() { cuda_ok(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate"); }
  ~CudaStream() { (void)cudaStreamDestroy(stream); }
  CudaStream(const CudaStream&) = delete;
  cudaStream_t stream = nullptr;
};

// The tensors of one run on the device, one a rank.
struct GpuCall {
  std::vector<Plan> plans;
  std::vector<DeviceTensor> rows, weights, ids, gates, outs;
};

class GpuSessionWorld {
 public:
  GpuSessionWorld(const Scenario& scenario, const GpuSetup& setup);

  int32_t size() const { return static_cast<int32_t>(sessions_.size()); }
  Session& session(int32_t rank) { return *sessions_[static_cast<size_t>(rank)]; }
  void close(int32_t rank) { sessions_[static_cast<size_t>(rank)].reset(); }
  cudaStream_t stream(int32_t rank) { return streams_[static_cast<size_t>(rank)]->stream; }

  // Outputs are NaN until the run has written them.
  GpuCall make_call(const Scenario& scenario) const;
  void refill(const Scenario& scenario, GpuCall& call) const;  // the same memory for other, not more, tokens
  RunArgs args(const GpuCall& call, int32_t rank, RunMode mode = RunMode::kOverlapped);
  void start(int32_t rank, const GpuCall& call, RunMode mode = RunMode::kOverlapped);
  void start_all(const GpuCall& call, RunMode mode = RunMode::kOverlapped);
  void synchronize_all();
  static std::vector<HostTensor> outs(const GpuCall& call);
  // Starts all ranks, waits for all and gives the outputs.
  std::vector<HostTensor> run(const Scenario& scenario, RunMode mode = RunMode::kOverlapped);

 private:
  SessionOptions options_;
  std::vector<std::unique_ptr<CudaStream>> streams_;
  std::vector<std::unique_ptr<Session>> sessions_;
};

std::vector<HostTensor> run_on_gpu(const Scenario& scenario, const GpuSetup& setup,
                                   RunMode mode = RunMode::kOverlapped);

// A layer's inputs on the device, one a rank.
struct GpuLayerCall {
  std::vector<DeviceTensor> x, ids, gates, up, down, outs;
};

class GpuLayerWorld {
 public:
  GpuLayerWorld(const LayerInputs& inputs, const GpuSetup& setup);

  int32_t size() const { return static_cast<int32_t>(layers_.size()); }
  MoeLayer& layer(int32_t rank) { return *layers_[static_cast<size_t>(rank)]; }
  void close(int32_t rank) { layers_[static_cast<size_t>(rank)].reset(); }
  cudaStream_t stream(int32_t rank) { return streams_[static_cast<size_t>(rank)]->stream; }

  static GpuLayerCall make_call(const LayerInputs& inputs);
  static void refill(const LayerInputs& inputs, GpuLayerCall& call);
  LayerArgs args(const GpuLayerCall& call, int32_t rank, RunMode mode = RunMode::kOverlapped);
  void start(int32_t rank, const GpuLayerCall& call, RunMode mode = RunMode::kOverlapped);
  void start_all(const GpuLayerCall& call, RunMode mode = RunMode::kOverlapped);
  void synchronize_all();
  static std::vector<HostTensor> outs(const GpuLayerCall& call);
  std::vector<HostTensor> run(const LayerInputs& inputs, RunMode mode = RunMode::kOverlapped);

 private:
  std::vector<std::unique_ptr<CudaStream>> streams_;
  std::vector<std::unique_ptr<MoeLayer>> layers_;
};

}  // namespace tileoverlap::testing
