#pragma once
// All ranks of an in-process world with one session each, driven by one thread.

#include <cstdint>
#include <memory>
#include <vector>

#include "support/scenario.hpp"
#include "tileoverlap/execute/cpu_executor.hpp"
#include "tileoverlap/transport/in_process.hpp"

namespace tileoverlap::testing {

inline constexpr int64_t kNoLimitReached = 60'000'000'000;  // of waits: a hang fails the test, slowness does not

struct WorldSetup {
  PlanOptions plan = {.tile_m = 4, .tile_n = 8};
  std::vector<CpuOptions> cpu = std::vector<CpuOptions>(1);  // one for all ranks, or one a rank
  int64_t max_tokens = -1;                                   // -1: the scenario's
  int64_t timeout_ns = kNoLimitReached;
  int64_t warmup_timeout_ns = 0;
  bool record_timeline = false;

  CpuOptions cpu_of(int32_t rank) const { return cpu.size() == 1 ? cpu[0] : cpu.at(static_cast<size_t>(rank)); }
};

// The tensors of one run, made by the test, and its plans.
struct Call {
  std::vector<Plan> plans;
  std::vector<HostTensor> rows, outs;
};

class SessionWorld {
 public:
  SessionWorld(const Scenario& scenario, const WorldSetup& setup);

  int32_t size() const { return static_cast<int32_t>(sessions_.size()); }
  Session& session(int32_t rank) { return *sessions_[static_cast<size_t>(rank)]; }
  void close(int32_t rank) { sessions_[static_cast<size_t>(rank)].reset(); }
  SessionOptions options() const { return options_; }

  // Outputs are NaN until the run has written them.
  Call make_call(const Scenario& scenario) const;
  void refill(const Scenario& scenario, Call& call) const;  // the same memory for other tokens

  static RunArgs args(const Scenario& scenario, const Call& call, int32_t rank, RunMode mode = RunMode::kOverlapped);
  void start(int32_t rank, const Scenario& scenario, const Call& call, RunMode mode = RunMode::kOverlapped);
  void start_all(const Scenario& scenario, const Call& call, RunMode mode = RunMode::kOverlapped);
  void synchronize_all();
  // Starts all ranks, waits for all and gives the outputs.
  std::vector<HostTensor> run(const Scenario& scenario, RunMode mode = RunMode::kOverlapped);

 private:
  SessionOptions options_;
  std::vector<std::unique_ptr<Session>> sessions_;
};

SessionOptions session_options(const Scenario& scenario, const WorldSetup& setup);

// A world for one run.
std::vector<HostTensor> run_once(const Scenario& scenario, const WorldSetup& setup,
                                 RunMode mode = RunMode::kOverlapped);

}  // namespace tileoverlap::testing
