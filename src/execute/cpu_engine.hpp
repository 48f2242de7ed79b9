#pragma once
// What a session and a layer have in common on the CPU: one rank's memory, threads, queue and return path.

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "core/zeroed_bytes.hpp"
#include "execute/cpu_workspace.hpp"
#include "execute/disorder.hpp"
#include "execute/engine_options.hpp"
#include "execute/recorder.hpp"
#include "execute/watch.hpp"
#include "execute/worker_pool.hpp"
#include "produce/cpu_producer.hpp"
#include "tileoverlap/dispatch/copy_index.hpp"
#include "tileoverlap/execute/cpu_executor.hpp"
#include "tileoverlap/plan/plan.hpp"

namespace tileoverlap {

// One call's tensors, checked.
struct ReturnCall {
  const PlanData* plan;
  const CopyIndex* index;
  const std::byte* rows;
  int64_t row_stride;  // elements
  WeightsView weights;
  TensorView topk_weights, out;
  RunMode mode;
};

class CpuEngine {
 public:
  CpuEngine(const std::shared_ptr<Transport>& transport, const CpuOptions& cpu, EngineOptions options);
  // Ends outstanding calls, waits for the threads and tells the peers.
  ~CpuEngine();
  CpuEngine(const CpuEngine&) = delete;
  CpuEngine& operator=(const CpuEngine&) = delete;

  const EngineOptions& options() const { return options_; }
  int32_t rank() const { return rank_; }
  uint64_t epoch() const { return epoch_.load(std::memory_order_relaxed); }
  SizeReport sizes() const;
  Timeline timeline() const { return recorder_.timeline(); }

  // Queues a call for the driver thread. What it throws is kept for synchronize(); anything but CallRefused ends the
  // engine, and the peers are told.
  void submit(std::function<void()> call);
  void synchronize();
  bool wait(int64_t limit_ns);
  void check();  // throws the WaitTimeout of a failed call

  // For calls, on the driver thread. Each returns false when the call has failed.
  bool begin_call();   // before anything that peers take part in
  void begin_epoch();  // the next epoch: only for a call that all ranks run
  bool dispatch(const PlanData& plan, const CopyIndex& index, const TensorView& x);  // rows out and in
  void first_projection(const PlanData& plan, const WeightsView& up);                // unless the expert is kSingle
  bool return_rows(const ReturnCall& call);

  const std::byte* dispatched_rows() const { return own_.input(); }
  const std::byte* projected_rows() const { return projected_.get(); }
  Exchange& exchange() { return memory_->exchange(); }
  Watch& watch() { return watch_; }
  Recorder& recorder() { return recorder_; }
  static constexpr int32_t kDriver = 0;  // worker number in timelines

 private:
  struct Worker {
    Worker(const EngineOptions& options, const CpuFaults& faults, uint64_t seed);
    ProducerScratch scratch;
    std::vector<float> sum;
  };

  std::vector<Worker> make_workers() const;
  std::vector<Delay> make_consumer_delays() const;
  void drive();
  bool connect();
  bool wait_for_arrivals(Word word, WaitFor what, std::span<const int64_t> rows, int64_t row_bytes,
                         std::vector<uint64_t>& totals);
  bool same_plans(const PlanData& plan);
  [[nodiscard]] WorkerPool::Job produce(ProduceTask& task);
  void reduce(const ReturnCall& call);
  void publish_credit(Word word);
  void poison(std::byte* memory, int64_t bytes) const;

  const int32_t rank_;
  const CpuOptions cpu_;
  const EngineOptions options_;
  const SizeReport sizes_;  // of this rank
  const WorkspaceLayout layout_;
  const ZeroedBytes output_, projected_;
  const TileFlags flags_;
  Recorder recorder_;
  std::atomic<uint64_t> epoch_;
  std::vector<uint64_t> returned_, dispatched_;  // bytes expected from each peer, of all calls
  std::vector<Worker> workers_;                  // producers
  std::vector<Delay> consumer_delays_;
  Delay driver_delay_;
  TaskOrder tile_order_, first_order_, segment_order_, token_order_;
  std::atomic<int64_t> tile_ticket_{0}, segment_ticket_{0}, token_ticket_{0};
  std::mutex queue_mutex_;
  std::condition_variable queue_changed_;
  std::deque<std::function<void()>> queue_;
  uint64_t submitted_ = 0, completed_ = 0;
  bool stop_ = false;
  std::exception_ptr refused_;  // of the first call since the last synchronize() that threw

  // Behind everything that its users use, and in front of the memory that peers see: what can fail at prepare has
  // happened before they see it.
  WorkerPool producers_, consumers_, driver_;
  const std::shared_ptr<SymmetricMemory> memory_;
  const RankMemory own_;
  Watch watch_;
  std::vector<RankMemory> peers_;  // empty before the first call
};

}  // namespace tileoverlap
