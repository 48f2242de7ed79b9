// Row counts and widths around the edges of tiles.

#include <gtest/gtest.h>

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
using testing::WorldSetup;

WorldSetup tiles(int32_t tile_m, int32_t tile_n, int32_t producers = 1) {
  WorldSetup setup{.plan = {.tile_m = tile_m, .tile_n = tile_n}};
  setup.cpu = {{.producer_threads = producers, .faults = {.poison = true}}};
  return setup;
}

TEST(Shapes, AFullTileHasAllItsRows) {
  Random random(1);
  constexpr int64_t kInner = 48;
  Scenario scenario = make_scenario(
      random, {.placement = Placement::even(2, 1), .k = kInner, .n = 128, .top_k = 1, .tokens = {0, 128}});
  set_all_ids(scenario, 0);
  scenario.copies[1].fill(1);
  scenario.weights[0].fill(1);
  scenario.gates[1].fill(1);
  const auto results = run_once(scenario, tiles(128, 128));
  for (int64_t token = 0; token < 128; ++token) {
    for (int64_t j = 0; j < 128; ++j) ASSERT_EQ(results[1].get(token * 128 + j), kInner) << "row " << token;
  }
}

TEST(Shapes, OneRowForEachExpertAndOwner) {
  Random random(2);
  Scenario scenario =
      make_scenario(random, {.placement = Placement::even(4, 16), .n = 32, .top_k = 16, .tokens = {1, 1, 1, 1}});
  for (int32_t rank = 0; rank < 4; ++rank) {
    for (int64_t expert = 0; expert < 16; ++expert)
      scenario.ids[static_cast<size_t>(rank)].put(expert, (expert * 7 + rank) % 16);
  }
  for (const Layout layout : {Layout::kOwnerAligned, Layout::kCompact}) {
    WorldSetup setup = tiles(128, 128);
    setup.plan.layout = layout;
    EXPECT_TRUE(same_bits(run_once(scenario, setup), exact_results(scenario)));
  }
}

TEST(Shapes, AnyNumberOfRowsIsLegal) {
  Random random(3);
  Scenario scenario =
      make_scenario(random, {.placement = Placement::even(1, 1), .k = 512, .n = 256, .top_k = 1, .tokens = {1471}});
  set_all_ids(scenario, 0);
  EXPECT_TRUE(same_bits(run_once(scenario, tiles(128, 128, 2)), exact_results(scenario)));
}

TEST(Shapes, TheLastColumnTileMayBeNarrow) {
  Random random(4);
  const Scenario scenario =
      make_scenario(random, {.placement = Placement::even(2, 4), .k = 512, .n = 72, .top_k = 2, .tokens = {10, 12}});
  for (const int32_t tile_n : {8, 16, 64, 71, 72, 73, 128}) {
    EXPECT_TRUE(same_bits(run_once(scenario, tiles(16, tile_n)), exact_results(scenario))) << tile_n;
  }
}

TEST(Shapes, RowCountsAroundTheTileHeightAndItsHalf) {
  for (const int64_t rows : {1, 2, 3, 63, 64, 65, 127, 128, 129}) {
    Random random(static_cast<uint64_t>(rows));
    Scenario scenario = make_scenario(
        random, {.placement = Placement::even(2, 8), .k = 24, .n = 40, .top_k = 4, .tokens = {rows, rows}});
    for (auto& ids : scenario.ids) {
      for (int64_t i = 0; i < ids.elements(); ++i) ids.put(i, i % 4);  // `rows` of each of rank 0's experts
    }
    for (const Layout layout : {Layout::kOwnerAligned, Layout::kCompact}) {
      WorldSetup setup = tiles(128, 16, 2);
      setup.plan.layout = layout;
      ASSERT_TRUE(same_bits(run_once(scenario, setup), exact_results(scenario))) << rows;
    }
  }
}

struct Size {
  int64_t rows, n, k;
};
class WideAndShallow : public ::testing::TestWithParam<Size> {};
TEST_P(WideAndShallow, IsRightWithNarrowAndWideTiles) {
  Random random(6);
  const Size size = GetParam();
  Scenario scenario = make_scenario(
      random, {.placement = Placement::even(2, 1), .k = size.k, .n = size.n, .top_k = 1, .tokens = {0, size.rows}});
  set_all_ids(scenario, 0);
  const auto expected = exact_results(scenario);
  EXPECT_TRUE(same_bits(run_once(scenario, tiles(64, 128)), expected));
  EXPECT_TRUE(same_bits(run_once(scenario, tiles(128, 256)), expected));
}
INSTANTIATE_TEST_SUITE_P(Shapes, WideAndShallow, ::testing::Values(Size{32, 7168, 256}, Size{1, 8192, 1024}));

TEST(Shapes, ThinnestRowsThatAreLegal) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    Random random(7);
    const int64_t thin = 16 / size_of(dtype);
    const Scenario scenario = make_scenario(
        random,
        {.placement = Placement::even(3, 6), .dtype = dtype, .k = thin, .n = thin, .top_k = 2, .tokens = {9, 8, 7}});
    EXPECT_TRUE(same_bits(run_once(scenario, tiles(4, 16)), exact_results(scenario)));
  }
}

TEST(Shapes, MoreCopiesThan65535) {
  Random random(8);
  const Scenario scenario =
      make_scenario(random, {.placement = Placement::even(2, 16), .k = 8, .n = 64, .top_k = 8, .tokens = {8192, 100}});
  EXPECT_TRUE(same_bits(run_once(scenario, tiles(128, 64)), exact_results(scenario)));
}

TEST(Shapes, RowsAndWeightsMayHaveLargerStrides) {
  Random random(9);
  Scenario scenario =
      make_scenario(random, {.placement = Placement::even(2, 4), .k = 16, .n = 24, .top_k = 2, .tokens = {10, 12}});
  testing::SessionWorld world(scenario, tiles(4, 16));
  auto call = world.make_call(scenario);
  // The same values inside wider tensors, NaN around them; the outputs are columns of a wider one, too.
  struct Wide {
    testing::HostTensor tensor;
    std::vector<int64_t> shape, strides;
    TensorArg arg() {
      tensor.dl().shape = shape.data();
      tensor.dl().strides = strides.data();
      tensor.dl().byte_offset = 16;
      return tensor.arg();
    }
  };
  std::vector<Wide> rows, weights, outs;
  for (size_t rank = 0; rank < 2; ++rank) {
    const int64_t count = call.rows[rank].size(0), tokens = call.outs[rank].size(0),
                  experts = scenario.weights[rank].size(0);
    rows.push_back({{DType::kBFloat16, {count + 2, 40}}, {count, 16}, {40, 1}});
    weights.push_back({{DType::kBFloat16, {experts + 1, 30, 24}}, {experts, 24, 16}, {30 * 24, 24, 1}});
    outs.push_back({{DType::kBFloat16, {tokens + 1, 56}}, {tokens, 24}, {56, 1}});
    for (Wide* wide : {&rows.back(), &weights.back(), &outs.back()}) wide->tensor.poison();
    for (int64_t i = 0; i < call.rows[rank].elements(); ++i)
      rows.back().tensor.put(8 + i / 16 * 40 + i % 16, call.rows[rank].get(i));
    for (int64_t i = 0; i < scenario.weights[rank].elements(); ++i) {
      weights.back().tensor.put(8 + i / (24 * 16) * 30 * 24 + i / 16 % 24 * 24 + i % 16, scenario.weights[rank].get(i));
    }
  }
  for (int32_t rank = 0; rank < 2; ++rank) {
    const auto r = static_cast<size_t>(rank);
    RunArgs args = world.args(scenario, call, rank);
    args.rows = rows[r].arg();
    args.weights = weights[r].arg();
    args.out = outs[r].arg();
    world.session(rank).run(call.plans[r], args);
  }
  world.synchronize_all();
  const auto expected = exact_results(scenario);
  for (size_t rank = 0; rank < 2; ++rank) {
    for (int64_t i = 0; i < expected[rank].elements(); ++i) {
      ASSERT_EQ(outs[rank].tensor.get(8 + i / 24 * 56 + i % 24), expected[rank].get(i)) << "rank " << rank;
    }
    // Nothing between the columns was written.
    for (int64_t row = 0; row < expected[rank].size(0); ++row) {
      ASSERT_TRUE(std::isnan(outs[rank].tensor.get(8 + row * 56 + 24)));
      ASSERT_TRUE(std::isnan(outs[rank].tensor.get(8 + row * 56 - 1)));
    }
  }
}

TEST(Shapes, RowsMayHoldMoreThanThePlansRows) {
  Random random(10);
  const Scenario scenario = make_scenario(random, {.placement = Placement::even(2, 4), .top_k = 2, .tokens = {10, 12}});
  testing::SessionWorld world(scenario, tiles(4, 16));
  auto call = world.make_call(scenario);
  for (auto& rows : call.rows) {
    testing::HostTensor larger(rows.dtype(), {rows.size(0) + 9, rows.size(1)});
    larger.poison();
    std::memcpy(larger.data(), rows.data(), rows.bytes());
    rows = std::move(larger);
  }
  world.start_all(scenario, call);
  world.synchronize_all();
  EXPECT_TRUE(same_bits(call.outs, exact_results(scenario)));
}

}  // namespace
}  // namespace tileoverlap
