#pragma once
// What a session and a layer have in common on a GPU: one rank's memory, streams and return path.

#include <cuda_runtime_api.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "core/cuda_objects.hpp"
#include "core/upload_ring.hpp"
#include "dispatch/index_copies.hpp"
#include "execute/checks.hpp"
#include "execute/comm_sms.hpp"
#include "execute/device_world.hpp"
#include "execute/engine_options.hpp"
#include "execute/link_kernels.hpp"
#include "execute/sm_share.hpp"
#include "plan/device_plan.hpp"
#include "produce/gpu_producer.hpp"
#include "produce/weight_table.hpp"
#include "tileoverlap/execute/cuda_executor.hpp"
#include "tileoverlap/plan/plan.hpp"
#include "transport/launch_turns.hpp"
#include "transport/remote_link.hpp"

namespace tileoverlap {

// One call's tensors, checked.
struct DeviceReturn {
  const std::byte* rows;
  int64_t rows_there;  // that `rows` holds
  int64_t row_stride;  // elements
  WeightsView weights;
  TensorView ids, topk_weights, out;
  RunMode mode;

  int64_t copies() const { return ids.shape[0] * ids.shape[1]; }  // slots of this rank's tokens
};

// Calls from several threads are ordered by lock(), which the session holds while it launches.
class CudaEngine {
 public:
  CudaEngine(const std::shared_ptr<Transport>& transport, const CudaOptions& cuda, EngineOptions options);
  // Waits for outstanding work, which bounded waits end at the latest, and tells the peers.
  ~CudaEngine();
  CudaEngine(const CudaEngine&) = delete;
  CudaEngine& operator=(const CudaEngine&) = delete;

  int32_t rank() const { return rank_; }
  uint64_t epoch() const { return epoch_.load(std::memory_order_relaxed); }
  TensorPlace place() const { return {device_, kRowBytes}; }
  SizeReport sizes() const;
  Timeline timeline() const;
  std::string device_text() const;
  std::unique_lock<std::mutex> lock() { return std::unique_lock(mutex_); }

  void synchronize();
  bool wait(int64_t limit_ns);
  void check();  // throws the WaitTimeout of a failed call

  // Runs a stage of a call: launches that wait for no more than what earlier stages of the peers do. A session's calls
  // have 2, a layer's 4.
  template <class Stage>
  void in_turn(Stage stage) {
    LaunchTurns* turns = memory_->launch_turns();
    turns == nullptr ? stage() : turns->run(rank_, limit_ns(), stage);
  }

  // The steps of a call, in this order; each launches on `stream` and returns.
  void begin_call(cudaStream_t stream);
  // A plan: made on the host, or on the device from all ranks' ids, or none for a call that this rank refuses.
  void upload(const Plan& plan, cudaStream_t stream);
  void vote(const TensorView& ids, cudaStream_t stream);
  void refuse(const std::string& reason, cudaStream_t stream);
  void plan(cudaStream_t stream);  // behind a vote or a refusal
  void send_rows(const TensorView& x, const TensorView& ids, cudaStream_t stream);
  void receive_rows(cudaStream_t stream);
  void first_projection(const WeightsView& up, cudaStream_t stream);
  void return_rows(const DeviceReturn& call, cudaStream_t stream);
  void reduce(const DeviceReturn& call, cudaStream_t stream);
  void end_call(cudaStream_t stream);

  static bool is_captured(cudaStream_t stream);
  // Throws InvalidArgument with `reason` where the stream is being captured in a graph.
  static void refuse_capture(cudaStream_t stream, const char* reason);

  const std::byte* dispatched_rows() const { return memory_->local() + layout_.input; }
  const std::byte* projected_rows() const { return projected_.data(); }
  int64_t rows() const { return rows_; }

  static constexpr int64_t kRowBytes = 16;

 private:
  bool has_dispatch() const { return options_.input_width > 0; }
  int64_t row_bytes() const { return options_.n * size_of(options_.dtype); }
  void load_kernels() const;
  void write(const DeviceBytes& to, const void* from, size_t bytes) const;
  bool map_peers();
  void connect(cudaStream_t stream);
  DeviceWorld device_world(int64_t limit_ns) const;
  DeviceWorld world() const;
  DevicePlan device_plan() const { return plan_layout_.at(plan_.data()); }
  CallStamps* stamps() const { return reinterpret_cast<CallStamps*>(call_stamps_.data()); }
  CountTask count_task(const TensorView& ids) const;
  IndexTask index_task(const TensorView& ids) const;
  IdReport* id_report() const { return reinterpret_cast<IdReport*>(index_.data() + index_layout_.report); }
  PlanCallTask plan_task() const;
  GemmTask gemm_task() const;
  ExpertWeights weights_of(WeightTable& table, const WeightsView& weights, int64_t n, int64_t k, bool gated,
                           cudaStream_t stream);
  void await(WaitFor what, cudaStream_t stream);
  // Throws InvalidArgument where rows cannot be transferred as the options say.
  void check_transfer() const;
  bool stores() const { return cuda_.transfer == Transfer::kStore; }
  int64_t staging_rows() const { return options_.capacity.max_tokens * options_.capacity.top_k; }
  void describe_owners();
  StoreTask store_task() const;
  void produce(const DeviceReturn& call, const PublishTask& publish, const StoreTask& store, int32_t ctas,
               cudaStream_t stream);
  void index_rows(const DeviceReturn& call, cudaStream_t stream);
  void ship_rows(const DeviceReturn& call, cudaStream_t stream);
  int64_t limit_ns() const;
  // The rows of the returned GEMM.
  std::byte* output() const { return kernels_.sources_in_part ? memory_->local() + layout_.output : output_.data(); }
  void poison_buffers(cudaStream_t stream) const;
  void poison(std::byte* memory, int64_t bytes, cudaStream_t stream) const;
  void throw_refusal();

  const int32_t rank_;
  const DLDevice device_;
  const CudaOptions cuda_;
  const EngineOptions options_;
  const SmShare share_;
  const CommSms comm_sms_;
  const SizeReport sizes_;
  const LinkKernels& kernels_;
  const WorkspaceLayout layout_;
  const int64_t rows_;  // of the GEMM's buffers
  const int32_t tiles_n_;
  const int64_t piece_rows_;
  const DevicePlanLayout plan_layout_;
  const IndexLayout index_layout_;
  const GpuProducer* const producer_;        // of the returned GEMM
  const GpuProducer* const first_producer_;  // of the first projection, or null
  const uint64_t terms_;

  std::mutex mutex_;
  std::atomic<uint64_t> epoch_;
  bool called_ = false;     // done_ has been recorded
  int32_t last_ctas_ = 0;   // of the last returned GEMM, for the timeline
  int32_t last_lanes_ = 0;  // of the last consumer; 0: none was needed
  bool connected_ = false;  // parts_ holds all peers

  DeviceBytes output_, projected_, flags_, plan_, control_, parts_, owners_, pes_, totals_, begins_, index_, planner_;
  DeviceBytes tile_stamps_, piece_stamps_, call_stamps_;
  PinnedBytes status_;
  Stream comm_, host_;  // of the consumer; of what the host itself asks
  Event begun_, sent_, done_;
  UploadRing uploads_;
  std::optional<Plan> uploaded_;
  WeightTable weight_table_, first_table_;
  // Last: when peers see it, what can fail has happened.
  std::shared_ptr<SymmetricMemory> memory_;
};

}  // namespace tileoverlap
