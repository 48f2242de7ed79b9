// Skipped slots, repeated experts, ids of either width and any stride, routing that differs by rank.

#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "support/compare.hpp"
#include "support/session_world.hpp"

namespace tileoverlap {
namespace {

using testing::exact_results;
using testing::make_scenario;
using testing::Random;
using testing::run_once;
using testing::same_bits;
using testing::Scenario;
using testing::SessionWorld;

// Every expert multiplies by its number plus one: weights (e + 1) * I.
void make_multipliers(Scenario& scenario) {
  for (int32_t rank = 0; rank < scenario.world(); ++rank) {
    auto& weights = scenario.weights[static_cast<size_t>(rank)];
    weights.fill(0);
    for (int32_t local = 0; local < scenario.placement.experts_on(rank); ++local) {
      for (int64_t i = 0; i < scenario.n; ++i) {
        weights.put((local * scenario.n + i) * scenario.k + i, scenario.placement.begin(rank) + local + 1);
      }
    }
  }
}

TEST(Ids, ASkippedSlotIsLeftOutAndNothingIsRenormalised) {
  Random random(1);
  Scenario scenario = make_scenario(
      random,
      {.placement = Placement::even(2, 4), .dtype = DType::kFloat32, .k = 4, .n = 4, .top_k = 2, .tokens = {2, 0}});
  make_multipliers(scenario);
  set_ids(scenario, 0, {0, -1, 3, 2});
  const float gates[] = {0.5f, 0.5f, 0.25f, 0.75f};
  for (int64_t i = 0; i < 4; ++i) scenario.gates[0].put(i, gates[i]);
  scenario.copies[0].fill(8);
  const auto out = std::move(run_once(scenario, {})[0]);
  EXPECT_EQ(out.get(0), 0.5f * 1 * 8);                   // expert 0 alone
  EXPECT_EQ(out.get(4), 0.25f * 4 * 8 + 0.75f * 3 * 8);  // experts 3 and 2
}

TEST(Ids, TheSameExpertTwiceIsTwoCopies) {
  Random random(2);
  Scenario scenario = make_scenario(
      random,
      {.placement = Placement::even(2, 8), .dtype = DType::kFloat32, .k = 4, .n = 4, .top_k = 2, .tokens = {1, 0}});
  make_multipliers(scenario);
  set_ids(scenario, 0, {3, 3});
  scenario.gates[0].put(0, 0.25f);
  scenario.gates[0].put(1, 0.5f);
  scenario.copies[0].fill(16);
  EXPECT_EQ(run_once(scenario, {})[0].get(0), 0.75f * 4 * 16);
}

TEST(Ids, ColumnsOfWiderTensorsAreReadByTheirStride) {
  Random random(3);
  Scenario scenario = make_scenario(random, {.placement = Placement::even(2, 8), .top_k = 2, .tokens = {4, 4}});
  SessionWorld world(scenario, {});
  const auto call = world.make_call(scenario);
  std::vector<testing::HostTensor> wide_ids, wide_gates;
  std::array<int64_t, 2> shape{4, 2}, strides{8, 1};
  for (size_t rank = 0; rank < 2; ++rank) {
    wide_ids.emplace_back(scenario.ids[rank].dtype(), std::vector<int64_t>{4, 8});
    wide_gates.emplace_back(DType::kFloat32, std::vector<int64_t>{4, 8});
    wide_ids[rank].fill(1);  // legal, but another routing
    wide_gates[rank].poison();
    for (int64_t i = 0; i < 8; ++i) {
      wide_ids[rank].put(i / 2 * 8 + i % 2, scenario.ids[rank].get_id(i));
      wide_gates[rank].put(i / 2 * 8 + i % 2, scenario.gates[rank].get(i));
    }
    for (testing::HostTensor* tensor : {&wide_ids[rank], &wide_gates[rank]}) {
      tensor->dl().shape = shape.data();
      tensor->dl().strides = strides.data();
    }
  }
  for (int32_t rank = 0; rank < 2; ++rank) {
    RunArgs args = world.args(scenario, call, rank);
    args.topk_ids = wide_ids[static_cast<size_t>(rank)].arg();
    args.topk_weights = wide_gates[static_cast<size_t>(rank)].arg();
    world.session(rank).run(call.plans[static_cast<size_t>(rank)], args);
  }
  world.synchronize_all();
  EXPECT_TRUE(same_bits(call.outs, exact_results(scenario)));
}

TEST(Ids, SkippedTokensSendNothingToAnybody) {
  Random random(4);
  Scenario scenario =
      make_scenario(random, {.placement = Placement::even(4, 8), .top_k = 2, .tokens = {1024, 1024, 1024, 1024}});
  std::vector<int64_t> remote(4, 0);
  for (int32_t rank = 0; rank < 4; ++rank) {
    auto& ids = scenario.ids[static_cast<size_t>(rank)];
    for (int64_t i = 0; i < ids.elements(); ++i) {
      ids.put(i, i / 2 % 2 == 0 ? -1 : (i + i / 2 * 3 + rank) % 8);  // every second token
      if (ids.get_id(i) >= 0 && scenario.placement.rank_of(static_cast<int32_t>(ids.get_id(i))) != rank)
        ++remote[static_cast<size_t>(rank)];
    }
  }
  SessionWorld world(scenario, {});
  const auto call = world.make_call(scenario);
  std::vector<int64_t> sent(4, 0);
  for (const Plan& plan : call.plans) {
    for (const Segment& segment : plan->segments) sent[static_cast<size_t>(segment.peer)] += segment.row_count;
  }
  EXPECT_EQ(sent, remote);
  world.start_all(scenario, call);
  world.synchronize_all();
  EXPECT_TRUE(same_bits(call.outs, exact_results(scenario)));
}

TEST(Ids, EachRankCombinesByItsOwn) {
  // Small integers, so that every step is exact: x * sum(w * (e + 1)).
  Random random(5);
  Scenario scenario = make_scenario(random, {.placement = Placement::even(4, 12),
                                             .dtype = DType::kFloat32,
                                             .k = 8,
                                             .n = 8,
                                             .top_k = 3,
                                             .tokens = {20, 20, 20, 20}});
  make_multipliers(scenario);
  for (int32_t rank = 0; rank < 4; ++rank) {
    const auto r = static_cast<size_t>(rank);
    for (int64_t i = 0; i < scenario.gates[r].elements(); ++i) scenario.gates[r].put(i, random.between(-4, 4));
    for (int64_t i = 0; i < scenario.copies[r].elements(); ++i) scenario.copies[r].put(i, i / 24 % 7 + rank);
  }
  const auto results = run_once(scenario, {});
  for (size_t rank = 0; rank < 4; ++rank) {
    for (int64_t token = 0; token < 20; ++token) {
      int64_t factor = 0;
      for (int64_t slot = token * 3; slot < token * 3 + 3; ++slot) {
        factor += static_cast<int64_t>(scenario.gates[rank].get(slot)) * (scenario.ids[rank].get_id(slot) + 1);
      }
      const auto x = static_cast<int64_t>(scenario.copies[rank].get(token * 24));
      for (int64_t j = 0; j < 8; ++j) {
        ASSERT_EQ(results[rank].get(token * 8 + j), static_cast<float>(x * factor))
            << "rank " << rank << ", token " << token;
      }
    }
  }
}

}  // namespace
}  // namespace tileoverlap
