// Calls in a row on a GPU: what one call leaves behind must not reach the next, whatever else the GPU does meanwhile.

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <memory>
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
using testing::CudaStream;
using testing::DeviceTensor;
using testing::disordered;
using testing::GpuCall;
using testing::GpuSessionWorld;
using testing::GpuSetup;
using testing::HostTensor;
using testing::make_scenario;
using testing::on_each_rank;
using testing::poisoned_gpu;
using testing::Random;
using testing::run_on_gpu;
using testing::same_bits;
using testing::Scenario;

class GpuEpochs : public ::testing::Test {
 protected:
  void SetUp() override {
    TILEOVERLAP_NEEDS_GPU();
    testing::load_busy_kernels();
  }

  static Scenario scenario_of(uint64_t seed, int32_t ranks, int64_t tokens) {
    Random random(seed);
    return make_scenario(random, {.placement = Placement::even(ranks, 2 * ranks),
                                  .k = 72,
                                  .n = 136,
                                  .top_k = 2,
                                  .tokens = std::vector<int64_t>(static_cast<size_t>(ranks), tokens)});
  }
};

// Calls with tokens of their own and what must come out of each.
struct Batch {
  std::vector<Scenario> scenarios;
  std::vector<GpuCall> calls;
  std::vector<std::vector<HostTensor>> expected;

  Batch(const GpuSessionWorld& world, size_t count, uint64_t seed, int32_t ranks, int64_t tokens) {
    for (size_t i = 0; i < count; ++i) {
      Random random(seed + i);
      scenarios.push_back(make_scenario(random, {.placement = Placement::even(ranks, 2 * ranks),
                                                 .k = 72,
                                                 .n = 136,
                                                 .top_k = 2,
                                                 .tokens = std::vector<int64_t>(static_cast<size_t>(ranks), tokens)}));
      expected.push_back(run_on_gpu(scenarios.back(), {}, RunMode::kSerial));
      EXPECT_TRUE(close_to_fp64(expected.back(), scenarios.back()));
      calls.push_back(world.make_call(scenarios.back()));
    }
  }
  // And poisons the outputs for the next round.
  void expect_results() {
    for (size_t i = 0; i < calls.size(); ++i) {
      ASSERT_TRUE(same_bits(GpuSessionWorld::outs(calls[i]), expected[i])) << "call " << i;
      for (DeviceTensor& out : calls[i].outs) out.poison();
    }
  }
};

TEST_F(GpuEpochs, PassTwoToThe32AndTwoToThe33) {
  // Epoch 2^32 is 0 in 32 bits, as the flags of bands that no call has used yet are.
  Random random(3);
  for (const uint64_t first : {(uint64_t{1} << 32) - 1, (uint64_t{1} << 32) - 3, (uint64_t{1} << 33) - 2}) {
    Scenario scenario = scenario_of(1, 3, 40);
    GpuSetup setup = disordered(4, 200);
    setup.cuda[0].faults.first_epoch = first;
    GpuSessionWorld world(scenario, setup);
    EXPECT_EQ(world.session(0).epoch(), first);
    const uint64_t wrap = first < uint64_t{1} << 32 ? uint64_t{1} << 32 : uint64_t{1} << 33;
    for (uint64_t number = 1; number <= 6; ++number) {
      const bool empty = first + number < wrap;  // leaves all flags as they were made
      draw_tokens(random, scenario, empty ? std::vector<int64_t>{0, 0, 0} : std::vector<int64_t>{40, 38, 39});
      ASSERT_TRUE(close_to_fp64(world.run(scenario), scenario)) << "call " << number;
      ASSERT_EQ(world.session(2).epoch(), first + number);
    }
  }
}

TEST_F(GpuEpochs, AFastRankIsHeldBackByCredits) {
  // One rank is four calls ahead; without credits they would land on top of each other.
  for (int32_t fast = 0; fast < 3; ++fast) {
    const Scenario shapes = scenario_of(10, 3, 64);
    GpuSetup setup = poisoned_gpu();
    setup.cuda = std::vector<CudaOptions>(3, setup.cuda[0]);
    setup.cuda[static_cast<size_t>((fast + 1) % 3)].faults.max_delay_us = 300;  // and one dawdles
    GpuSessionWorld world(shapes, setup);
    Batch batch(world, 4, 10, 3, 64);
    for (const GpuCall& call : batch.calls) world.start(fast, call);
    for (int32_t step = 1; step < 3; ++step) {
      for (const GpuCall& call : batch.calls) world.start((fast + step) % 3, call);
    }
    world.synchronize_all();
    batch.expect_results();
  }
}

TEST_F(GpuEpochs, CallsBackToBackKeepTheirOwnResults) {
  const Scenario shapes = scenario_of(20, 2, 150);
  GpuSessionWorld world(shapes, disordered(5));
  Batch batch(world, 6, 20, 2, 150);
  for (const GpuCall& call : batch.calls) world.start_all(call);
  world.synchronize_all();
  batch.expect_results();
}

TEST_F(GpuEpochs, HundredsOfCallsOfOneTokenBackToBack) {
  Random random(30);
  Scenario scenario =
      make_scenario(random, {.placement = Placement::even(2, 2), .k = 8, .n = 8, .top_k = 1, .tokens = {1, 1}});
  for (int32_t rank = 0; rank < 2; ++rank) set_ids(scenario, rank, {1 - rank});
  GpuSessionWorld world(scenario, poisoned_gpu());
  const GpuCall call = world.make_call(scenario);
  for (int number = 0; number < 500; ++number) world.start_all(call);
  world.synchronize_all();
  EXPECT_TRUE(close_to_fp64(GpuSessionWorld::outs(call), scenario));
  EXPECT_EQ(world.session(0).epoch(), 500u);
}

TEST_F(GpuEpochs, SmallAndLargeCallsTakeTurns) {
  Random random(31);
  Scenario scenario = scenario_of(31, 2, 300);
  GpuSessionWorld world(scenario, poisoned_gpu());
  for (int round = 0; round < 5; ++round) {
    for (const int64_t tokens : {1, 300}) {
      draw_tokens(random, scenario, {tokens, tokens});
      ASSERT_TRUE(close_to_fp64(world.run(scenario), scenario)) << "round " << round << ", T = " << tokens;
    }
  }
}

TEST_F(GpuEpochs, EachCallMayComeOnAnotherStream) {
  const Scenario shapes = scenario_of(40, 2, 100);
  GpuSessionWorld world(shapes, poisoned_gpu());
  Batch batch(world, 4, 40, 2, 100);
  std::array<CudaStream, 6> streams;
  for (size_t i = 0; i < batch.calls.size(); ++i) {
    for (int32_t rank = 0; rank < 2; ++rank) {
      const auto r = static_cast<size_t>(rank);
      RunArgs args = world.args(batch.calls[i], rank);
      args.stream = streams[(i * 2 + r) % streams.size()].stream;
      // A rank's calls are ordered among each other, streams or not: here the earlier stream is the slower one.
      if (i == 0) testing::keep_busy(1, 20'000'000, streams[r].stream);
      world.session(rank).run(batch.calls[i].plans[r], args);
    }
  }
  world.synchronize_all();
  batch.expect_results();
}

TEST_F(GpuEpochs, OneRankMayUseTheDefaultStream) {
  const Scenario shapes = scenario_of(45, 2, 100);
  GpuSessionWorld world(shapes, poisoned_gpu());
  Batch batch(world, 3, 45, 2, 100);
  for (const GpuCall& call : batch.calls) {
    RunArgs args = world.args(call, 0);
    args.stream = nullptr;
    world.session(0).run(call.plans[0], args);
    world.start(1, call);
  }
  world.synchronize_all();
  batch.expect_results();
}

TEST_F(GpuEpochs, AResultIsReadyForWorkBehindItOnTheStream) {
  // No synchronize() between the call and the copy of its output: the stream's order is enough.
  const Scenario shapes = scenario_of(50, 3, 120);
  GpuSessionWorld world(shapes, disordered(6, 100));
  Batch batch(world, 4, 50, 3, 120);
  std::vector<std::vector<DeviceTensor>> copies;
  for (const GpuCall& call : batch.calls) {
    copies.emplace_back();
    for (const DeviceTensor& out : call.outs) copies.back().emplace_back(out.download());
  }
  for (size_t i = 0; i < batch.calls.size(); ++i) {
    world.start_all(batch.calls[i]);
    for (int32_t rank = 0; rank < 3; ++rank) {
      const auto r = static_cast<size_t>(rank);
      cuda_ok(cudaMemcpyAsync(copies[i][r].data(), batch.calls[i].outs[r].data(), batch.expected[i][r].bytes(),
                              cudaMemcpyDeviceToDevice, world.stream(rank)),
              "cudaMemcpyAsync");
      cuda_ok(cudaMemsetAsync(batch.calls[i].rows[r].data(), 0xff, 16, world.stream(rank)), "cudaMemsetAsync");
    }
  }
  for (int32_t rank = 0; rank < 3; ++rank) cuda_ok(cudaStreamSynchronize(world.stream(rank)), "cudaStreamSynchronize");
  for (size_t i = 0; i < batch.calls.size(); ++i) {
    std::vector<HostTensor> got;
    for (const DeviceTensor& copy : copies[i]) got.push_back(copy.download());
    ASSERT_TRUE(same_bits(got, batch.expected[i])) << "call " << i;
  }
  world.synchronize_all();
}

TEST_F(GpuEpochs, KernelsThatHoldAllSmsOnlyDelay) {
  const Scenario shapes = scenario_of(60, 2, 200);
  GpuSessionWorld world(shapes, poisoned_gpu());
  Batch batch(world, 5, 60, 2, 200);
  CudaStream other;
  Random random(61);
  for (int round = 0; round < 4; ++round) {
    for (const GpuCall& call : batch.calls) {
      for (int32_t rank = 0; rank < 2; ++rank) {
        testing::keep_busy(0, random.between(100'000, 10'000'000), other.stream);
        world.start(rank, call);
      }
    }
    world.synchronize_all();
    batch.expect_results();
  }
  cuda_ok(cudaStreamSynchronize(other.stream), "cudaStreamSynchronize");
}

TEST_F(GpuEpochs, LargeCopiesOnAnotherStreamOnlyDelay) {
  constexpr size_t kBytes = size_t{1} << 28;
  void *from = nullptr, *to = nullptr;
  cuda_ok(cudaMalloc(&from, kBytes), "cudaMalloc");
  cuda_ok(cudaMalloc(&to, kBytes), "cudaMalloc");
  {
    const Scenario shapes = scenario_of(70, 3, 100);
    GpuSessionWorld world(shapes, poisoned_gpu());
    Batch batch(world, 4, 70, 3, 100);
    CudaStream other;
    for (int round = 0; round < 4; ++round) {
      for (int i = 0; i < 30; ++i) {
        cuda_ok(cudaMemsetAsync(from, i, kBytes, other.stream), "cudaMemsetAsync");
        cuda_ok(cudaMemcpyAsync(to, from, kBytes, cudaMemcpyDeviceToDevice, other.stream), "cudaMemcpyAsync");
      }
      for (const GpuCall& call : batch.calls) world.start_all(call);
      world.synchronize_all();
      batch.expect_results();
    }
    cuda_ok(cudaStreamSynchronize(other.stream), "cudaStreamSynchronize");
  }
  (void)cudaFree(from);
  (void)cudaFree(to);
}

TEST_F(GpuEpochs, EachRankMayHaveAThreadOfItsOwn) {
  const Scenario shapes = scenario_of(80, 4, 60);
  GpuSessionWorld world(shapes, disordered(7));
  Batch batch(world, 5, 80, 4, 60);
  on_each_rank(4, [&](int32_t rank) {
    for (size_t i = 0; i < batch.calls.size(); ++i) {
      std::this_thread::sleep_for(std::chrono::microseconds(300 * ((static_cast<int>(i) + rank) % 3)));
      world.start(rank, batch.calls[i]);
      if (i % 3 == 0) world.session(rank).synchronize();
    }
    world.session(rank).synchronize();
  });
  batch.expect_results();
}

TEST_F(GpuEpochs, TwoCallersOfOneSessionAreOrdered) {
  // Both threads of a rank make the same call, so that it does not matter whose comes first.
  const Scenario scenario = scenario_of(90, 2, 50);
  const auto expected = run_on_gpu(scenario, {}, RunMode::kSerial);
  GpuSessionWorld world(scenario, poisoned_gpu());
  constexpr int kCalls = 10;
  std::vector<GpuCall> calls;
  for (int i = 0; i < 2 * kCalls; ++i) calls.push_back(world.make_call(scenario));
  on_each_rank(4, [&](int32_t thread) {  // two threads a rank
    for (int i = 0; i < kCalls; ++i) world.start(thread / 2, calls[static_cast<size_t>(2 * i + thread % 2)]);
    world.session(thread / 2).synchronize();
  });
  world.synchronize_all();
  for (const GpuCall& call : calls) ASSERT_TRUE(same_bits(GpuSessionWorld::outs(call), expected));
  EXPECT_EQ(world.session(0).epoch(), static_cast<uint64_t>(2 * kCalls));
}

TEST_F(GpuEpochs, OfTwoSessionsInOneWorldAreIndependent) {
  const Scenario first = scenario_of(95, 2, 40), second = scenario_of(96, 2, 25);
  const auto expected_first = run_on_gpu(first, {}, RunMode::kSerial),
             expected_second = run_on_gpu(second, {}, RunMode::kSerial);
  GpuSessionWorld shapes(first, {}), other_shapes(second, {});  // for plans, tensors and streams only
  testing::WorldSetup cpu;                                      // for the options
  cpu.plan = GpuSetup().plan;
  CudaOptions options;
  options.sms = 20;
  options.faults = {.max_delay_us = 50, .poison = true};
  std::vector<std::unique_ptr<Session>> of_first, of_second;
  for (const auto& transport : make_device_world({0, 0})) {
    const auto executor = make_cuda_executor(transport, options);
    of_first.push_back(executor->prepare(session_options(first, cpu)));
    of_second.push_back(executor->prepare(session_options(second, cpu)));
  }
  GpuCall a = shapes.make_call(first), b = other_shapes.make_call(second);
  for (int number = 0; number < 10; ++number) {
    for (GpuCall* call : {&a, &b}) {
      for (DeviceTensor& out : call->outs) out.poison();
    }
    of_first[0]->run(a.plans[0], shapes.args(a, 0));
    of_second[0]->run(b.plans[0], other_shapes.args(b, 0));
    of_second[1]->run(b.plans[1], other_shapes.args(b, 1));  // the other order on rank 1
    of_first[1]->run(a.plans[1], shapes.args(a, 1));
    for (size_t rank = 0; rank < 2; ++rank) {
      of_second[rank]->synchronize();
      of_first[rank]->synchronize();
    }
    ASSERT_TRUE(same_bits(GpuSessionWorld::outs(a), expected_first)) << number;
    ASSERT_TRUE(same_bits(GpuSessionWorld::outs(b), expected_second)) << number;
  }
}

TEST_F(GpuEpochs, OfManySessionsOneAfterAnotherInOneWorld) {
  const Scenario scenario = scenario_of(97, 2, 30);
  const auto expected = run_on_gpu(scenario, {}, RunMode::kSerial);
  GpuSessionWorld shapes(scenario, {});
  testing::WorldSetup cpu;
  cpu.plan = GpuSetup().plan;
  const auto transports = make_device_world({0, 0});
  for (int round = 0; round < 10; ++round) {
    const GpuCall call = shapes.make_call(scenario);
    std::vector<std::unique_ptr<Session>> sessions;
    for (const auto& transport : transports) {
      sessions.push_back(make_cuda_executor(transport)->prepare(session_options(scenario, cpu)));
    }
    for (int32_t rank = 0; rank < 2; ++rank) {
      sessions[static_cast<size_t>(rank)]->run(call.plans[static_cast<size_t>(rank)], shapes.args(call, rank));
    }
    for (const auto& session : sessions) session->synchronize();
    ASSERT_TRUE(same_bits(GpuSessionWorld::outs(call), expected)) << "round " << round;
  }
}

}  // namespace
}  // namespace tileoverlap
