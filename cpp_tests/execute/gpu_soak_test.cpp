// Thousands of calls in a row on a GPU with changing counts, shuffled shipping, delays and poison, compared on the
// device: no stale row, no hang, no memory that grows.
//
// TILEOVERLAP_GPU_SOAK_CALLS    number of calls of four ranks (default 2,000)
// TILEOVERLAP_GPU_SOAK_THREADS  1: one thread a rank; otherwise one thread drives all ranks. What serialises launches
//                               (CUDA_LAUNCH_BLOCKING=1) needs the former: a launch that waits for its kernel would
//                               keep the only thread from the rank that the kernel waits for.
// TILEOVERLAP_GPU_SOAK_BUSY     1: another stream fills all SMs again and again meanwhile

#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "support/busy_kernel.hpp"
#include "support/compare.hpp"
#include "support/gpu_checks.hpp"
#include "support/gpu_world.hpp"
#include "support/rank_threads.hpp"

namespace tileoverlap {
namespace {

using testing::cuda_ok;
using testing::DeviceTensor;
using testing::GpuSetup;
using testing::HostTensor;
using testing::Random;

constexpr int32_t kRanks = 4;
constexpr int64_t kMostTokens = 64;

int from_env(const char* variable, int otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::stoi(text);
}
int soak_calls() { return from_env("TILEOVERLAP_GPU_SOAK_CALLS", 2'000); }
bool one_thread_a_rank() { return from_env("TILEOVERLAP_GPU_SOAK_THREADS", 0) == 1; }

// While it lives, a stream of its own takes every SM for a while, lets go, and takes them again, where the environment
// asks for it.
class OtherWork {
 public:
  OtherWork() {
    if (from_env("TILEOVERLAP_GPU_SOAK_BUSY", 0) == 1)
      thread_ = std::jthread([](const std::stop_token& stop) { work(stop); });
  }

 private:
  static void work(const std::stop_token& stop) {
    constexpr int64_t kBusyNs = 300'000;
    const testing::CudaStream own;
    while (!stop.stop_requested()) {
      testing::keep_busy(0, kBusyNs, own.stream);
      cuda_ok(cudaStreamSynchronize(own.stream), "cudaStreamSynchronize");
      std::this_thread::sleep_for(std::chrono::nanoseconds(kBusyNs));
    }
  }
  std::jthread thread_;
};

std::vector<int64_t> some_tokens(Random& random) {
  std::vector<int64_t> tokens;
  for (int32_t rank = 0; rank < kRanks; ++rank) {
    tokens.push_back(random.chance(15) ? 0 : random.chance(30) ? 1 : random.between(0, kMostTokens));
  }
  if (random.chance(5)) tokens.assign(kRanks, 0);
  return tokens;
}

struct Way {
  Layout layout;
  Transfer transfer;

  std::string text() const { return std::string(name(layout)) + (transfer == Transfer::kStore ? "_store" : "_ship"); }
};

GpuSetup soak_setup(const Way& way) {
  GpuSetup setup{.plan = {.tile_m = 128, .tile_n = 128, .layout = way.layout, .bands_per_segment = 2}};
  setup.max_tokens = kMostTokens;
  // Ranks differ in SMs and in haste.
  setup.cuda = std::vector<CudaOptions>(kRanks);
  for (int32_t rank = 0; rank < kRanks; ++rank) {
    CudaOptions& options = setup.cuda[static_cast<size_t>(rank)];
    options.comm_sms = 1 + rank % 3;
    options.transfer = way.transfer;
    options.faults = {.shuffle_seed = static_cast<uint64_t>(rank) + 1, .max_delay_us = 3 * rank, .poison = true};
  }
  return setup;
}

// Bytes that differed, by rank, on the device.
class Mismatches {
 public:
  Mismatches() {
    counters_ = DeviceTensor(HostTensor(DType::kInt64, {kRanks}));  // zeros
  }
  uint64_t* of(int32_t rank) const { return static_cast<uint64_t*>(counters_.data()) + rank; }
  int64_t total() const {
    const HostTensor counted = counters_.download();
    int64_t sum = 0;
    for (int64_t i = 0; i < kRanks; ++i) sum += counted.get_id(i);
    return sum;
  }

 private:
  DeviceTensor counters_;
};

// Of the whole GPU: where other processes take memory meanwhile, the test fails.
size_t free_bytes() {
  size_t free = 0, total = 0;
  cuda_ok(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  return free;
}

// What a call needs beside the world: one element of the pool that calls are drawn from.
struct Expected {
  std::vector<DeviceTensor> outs;  // by rank
};

// Enqueues the calls and the comparisons behind them. `start(rank, item, mode)` starts a rank's call with one item of
// the pool, `out(rank, item)` is where its result goes.
struct Soak {
  const std::vector<Expected>& pool;
  std::function<void(int32_t, size_t, RunMode)> start;
  std::function<void*(int32_t, size_t)> out;
  std::function<cudaStream_t(int32_t)> stream;
  std::function<void()> synchronize_all;
  std::function<void(int32_t)> synchronize;

  struct Step {
    size_t item;
    RunMode mode;
  };

  void one(int32_t rank, const Step& step) const {
    const DeviceTensor& expected = pool[step.item].outs[static_cast<size_t>(rank)];
    const size_t bytes = expected.bytes();
    void* to = out(rank, step.item);
    cuda_ok(cudaMemsetAsync(to, 0xff, bytes, stream(rank)), "cudaMemsetAsync");
    start(rank, step.item, step.mode);
    testing::count_mismatches(to, expected.data(), bytes, mismatches.of(rank), stream(rank));
  }

  void drive(const std::vector<Step>& steps, Random& random) const {
    if (one_thread_a_rank()) {
      testing::on_each_rank(kRanks, [&](int32_t rank) {
        for (const Step& step : steps) one(rank, step);
        synchronize(rank);
      });
      return;
    }
    constexpr size_t kAhead = 3;
    for (size_t done = 0; done < steps.size(); done += kAhead) {
      const size_t end = std::min(steps.size(), done + kAhead);
      const int32_t first = random.between32(0, kRanks - 1);
      if (random.chance(50)) {  // each rank is calls ahead of the next
        for (int32_t turn = 0; turn < kRanks; ++turn) {
          for (size_t i = done; i < end; ++i) one((first + turn) % kRanks, steps[i]);
        }
      } else {
        for (size_t i = done; i < end; ++i) {
          for (int32_t turn = 0; turn < kRanks; ++turn) one((first + turn) % kRanks, steps[i]);
        }
      }
    }
    synchronize_all();
  }

  void run(const std::string& what) const {
    Random random(401);
    const int total = soak_calls();
    constexpr int kWarmUp = 50, kAtOnce = 200;
    const auto draw = [&](int count) {
      std::vector<Step> steps;
      for (int i = 0; i < count; ++i) {
        const auto item = static_cast<size_t>(random.between(0, static_cast<int64_t>(pool.size()) - 1));
        steps.push_back({item, random.chance(10) ? RunMode::kSerial : RunMode::kOverlapped});
      }
      return steps;
    };
    drive(draw(kWarmUp), random);
    const OtherWork other_work;
    const size_t free_before = free_bytes();
    const auto begin = std::chrono::steady_clock::now();
    for (int done = 0; done < total; done += kAtOnce) {
      drive(draw(std::min(kAtOnce, total - done)), random);
      ASSERT_EQ(mismatches.total(), 0) << what << ": within the " << kAtOnce << " calls behind call " << done;
    }
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    EXPECT_GE(free_bytes(), free_before) << "device memory has grown";
    std::printf("%s: %d calls of %d ranks in %.2f s, %.0f us a call, %s\n", what.c_str(), total, kRanks, seconds,
                1e6 * seconds / std::max(1, total), one_thread_a_rank() ? "one thread a rank" : "one thread");
  }

  Mismatches mismatches = {};
};

// On the device, after they have been checked.
Expected uploaded(const std::vector<HostTensor>& outs) {
  Expected expected;
  for (const HostTensor& out : outs) expected.outs.emplace_back(out);
  return expected;
}

class GpuSoak : public ::testing::TestWithParam<Way> {
 protected:
  void SetUp() override {
    TILEOVERLAP_NEEDS_GPU();
    if (GetParam().transfer == Transfer::kStore && !testing::gpu_stores_to_owners()) {
      GTEST_SKIP() << "needs a GPU of compute capability 9.0";
    }
    testing::load_busy_kernels();
  }
};
INSTANTIATE_TEST_SUITE_P(Ways, GpuSoak,
                         ::testing::Values(Way{Layout::kCompact, Transfer::kShip},
                                           Way{Layout::kOwnerAligned, Transfer::kShip},
                                           Way{Layout::kCompact, Transfer::kStore},
                                           Way{Layout::kOwnerAligned, Transfer::kStore}),
                         [](const auto& test) { return test.param.text(); });

TEST_P(GpuSoak, EveryCallGivesItsOwnResult) {
  constexpr size_t kPool = 64;
  Random random(301);
  testing::Scenario scenario = make_scenario(random, {.placement = Placement::from_begins({0, 3, 3, 6, 8}),
                                                      .k = 64,
                                                      .n = 256,
                                                      .top_k = 2,
                                                      .tokens = std::vector<int64_t>(kRanks, kMostTokens)});
  testing::GpuSessionWorld world(scenario, soak_setup(GetParam()));
  std::vector<testing::GpuCall> calls;
  std::vector<Expected> pool;
  GpuSetup plain;
  plain.plan = soak_setup(GetParam()).plan;
  plain.max_tokens = kMostTokens;
  testing::GpuSessionWorld serial(scenario, plain);
  for (size_t i = 0; i < kPool; ++i) {
    draw_tokens(random, scenario, some_tokens(random));
    calls.push_back(world.make_call(scenario));
    const testing::GpuCall call = serial.make_call(scenario);
    if (one_thread_a_rank()) {
      testing::on_each_rank(kRanks, [&](int32_t rank) {
        serial.start(rank, call, RunMode::kSerial);
        serial.session(rank).synchronize();
      });
    } else {
      serial.start_all(call, RunMode::kSerial);
      serial.synchronize_all();
    }
    const auto expected = testing::GpuSessionWorld::outs(call);
    ASSERT_TRUE(close_to_fp64(expected, scenario)) << "token set " << i;
    pool.push_back(uploaded(expected));
  }
  const Soak soak{.pool = pool,
                  .start = [&](int32_t rank, size_t item, RunMode mode) { world.start(rank, calls[item], mode); },
                  .out = [&](int32_t rank, size_t item) { return calls[item].outs[static_cast<size_t>(rank)].data(); },
                  .stream = [&](int32_t rank) { return world.stream(rank); },
                  .synchronize_all = [&] { world.synchronize_all(); },
                  .synchronize = [&](int32_t rank) { world.session(rank).synchronize(); }};
  soak.run("session, " + GetParam().text());
}

TEST_P(GpuSoak, EveryLayerCallGivesItsOwnResult) {
  constexpr size_t kPool = 32;
  Random random(302);
  testing::LayerInputs inputs = make_layer_inputs(
      random, {.placement = Placement::from_begins({0, 3, 3, 6, 8}),
               .expert = GetParam().layout == Layout::kCompact ? ExpertKind::kSiluGate : ExpertKind::kGelu,
               .hidden = 128,
               .inner = 64,
               .top_k = 2,
               .tokens = std::vector<int64_t>(kRanks, kMostTokens)});
  testing::GpuLayerWorld world(inputs, soak_setup(GetParam()));
  GpuSetup plain;
  plain.plan = soak_setup(GetParam()).plan;
  plain.max_tokens = kMostTokens;
  testing::GpuLayerWorld serial(inputs, plain);
  std::vector<testing::GpuLayerCall> calls;
  std::vector<Expected> pool;
  for (size_t i = 0; i < kPool; ++i) {
    draw_layer_tokens(random, inputs, some_tokens(random));
    calls.push_back(testing::GpuLayerWorld::make_call(inputs));
    const testing::GpuLayerCall call = testing::GpuLayerWorld::make_call(inputs);
    if (one_thread_a_rank()) {
      testing::on_each_rank(kRanks, [&](int32_t rank) {
        serial.start(rank, call, RunMode::kSerial);
        serial.layer(rank).synchronize();
      });
    } else {
      serial.start_all(call, RunMode::kSerial);
      serial.synchronize_all();
    }
    const auto expected = testing::GpuLayerWorld::outs(call);
    ASSERT_TRUE(close_to_fp64(expected, inputs)) << "token set " << i;
    pool.push_back(uploaded(expected));
  }
  const Soak soak{.pool = pool,
                  .start = [&](int32_t rank, size_t item, RunMode mode) { world.start(rank, calls[item], mode); },
                  .out = [&](int32_t rank, size_t item) { return calls[item].outs[static_cast<size_t>(rank)].data(); },
                  .stream = [&](int32_t rank) { return world.stream(rank); },
                  .synchronize_all = [&] { world.synchronize_all(); },
                  .synchronize = [&](int32_t rank) { world.layer(rank).synchronize(); }};
  soak.run("layer, " + GetParam().text());
}

}  // namespace
}  // namespace tileoverlap
