// What run refuses: each time the message is read, nothing was written, and the session stays usable.

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "support/compare.hpp"
#include "support/messages.hpp"
#include "support/session_world.hpp"

namespace tileoverlap {
namespace {

using testing::Call;
using testing::exact_results;
using testing::HostTensor;
using testing::make_scenario;
using testing::message_of;
using testing::Random;
using testing::same_bits;
using testing::Says;
using testing::Scenario;
using testing::SessionWorld;
using testing::WorldSetup;

// Two ranks, three experts each, k = 16, n = 24, top 2, T = 6 and 5, tiles of 4 x 8.
class RunRefuses : public ::testing::Test {
 protected:
  RunRefuses()
      : scenario_(make_scenario(random_,
                                {.placement = Placement::even(2, 6), .k = 16, .n = 24, .top_k = 2, .tokens = {6, 5}})),
        world_(scenario_, {}),
        call_(world_.make_call(scenario_)),
        args_(SessionWorld::args(scenario_, call_, 0)) {}

  ~RunRefuses() override {
    // Whatever was refused: nothing was started or written, and a good call goes through on both ranks.
    EXPECT_EQ(world_.session(0).epoch(), 0u);
    EXPECT_TRUE(std::isnan(call_.outs[0].get(0)));
    EXPECT_TRUE(same_bits(world_.run(scenario_), exact_results(scenario_)));
  }

  template <class ErrorType = InvalidArgument>
  std::string refusal(const RunArgs& args) {
    return message_of<ErrorType>([&] { world_.session(0).run(call_.plans[0], args); });
  }
  template <class ErrorType = InvalidArgument>
  std::string refusal(const Plan& plan) {
    return message_of<ErrorType>([&] { world_.session(0).run(plan, args_); });
  }

  Random random_{1};
  Scenario scenario_;
  SessionWorld world_;
  Call call_;
  RunArgs args_;
};

TEST_F(RunRefuses, MissingTensorsByName) {
  using Member = TensorArg& (*)(RunArgs&);
  for (const auto& [argument, member] : std::initializer_list<std::pair<const char*, Member>>{
           {"rows", [](RunArgs& args) -> TensorArg& { return args.rows; }},
           {"weights", [](RunArgs& args) -> TensorArg& { return args.weights.tensor; }},
           {"topk_ids", [](RunArgs& args) -> TensorArg& { return args.topk_ids; }},
           {"topk_weights", [](RunArgs& args) -> TensorArg& { return args.topk_weights; }},
           {"out", [](RunArgs& args) -> TensorArg& { return args.out; }}}) {
    RunArgs args = args_;
    member(args) = {};
    EXPECT_THAT(refusal(args), Says(argument, "missing"));
  }
}

TEST_F(RunRefuses, OtherDTypesByName) {
  const HostTensor single(DType::kFloat32, {64, 16}), heavy(DType::kFloat32, {3, 24, 16}),
      out(DType::kFloat16, {6, 24}), gates(DType::kBFloat16, {6, 2}), ids(DType::kFloat32, {6, 2});
  RunArgs args = args_;
  args.rows = single.arg();
  EXPECT_THAT(refusal<DTypeError>(args), Says("rows", "bfloat16", "float32"));
  args = args_, args.weights = heavy.arg();
  EXPECT_THAT(refusal<DTypeError>(args), Says("weights", "bfloat16", "float32"));
  args = args_, args.out = out.arg();
  EXPECT_THAT(refusal<DTypeError>(args), Says("out", "bfloat16", "float16"));
  args = args_, args.topk_weights = gates.arg();
  EXPECT_THAT(refusal<DTypeError>(args), Says("topk_weights", "float32", "bfloat16"));
  args = args_, args.topk_ids = ids.arg();
  EXPECT_THAT(refusal<DTypeError>(args), Says("topk_ids", "int32", "int64", "float32"));
}

TEST_F(RunRefuses, OtherShapesWithBothShapes) {
  const HostTensor wide(DType::kBFloat16, {64, 24}), experts(DType::kBFloat16, {2, 24, 16}),
      n(DType::kBFloat16, {3, 32, 16}), k(DType::kBFloat16, {3, 24, 8}), flat(DType::kBFloat16, {72, 16}),
      gates(DType::kFloat32, {5, 2}), tokens(DType::kBFloat16, {5, 24}), width(DType::kBFloat16, {6, 32});
  RunArgs args = args_;
  args.rows = wide.arg();
  EXPECT_THAT(refusal(args), Says("rows", "[any, 16]", "[64, 24]"));
  args = args_, args.weights = experts.arg();
  EXPECT_THAT(refusal(args), Says("weights", "[3, 24, 16]", "[2, 24, 16]"));
  args.weights = n.arg();
  EXPECT_THAT(refusal(args), Says("weights", "[3, 24, 16]", "[3, 32, 16]"));
  args.weights = k.arg();
  EXPECT_THAT(refusal(args), Says("weights", "[3, 24, 16]", "[3, 24, 8]"));
  args.weights = flat.arg();
  EXPECT_THAT(refusal(args), Says("weights", "[3, 24, 16]", "[72, 16]"));
  args = args_, args.topk_weights = gates.arg();
  EXPECT_THAT(refusal(args), Says("topk_weights", "[6, 2]", "[5, 2]"));
  args = args_, args.out = tokens.arg();
  EXPECT_THAT(refusal(args), Says("out", "[6, 24]", "[5, 24]"));
  args.out = width.arg();
  EXPECT_THAT(refusal(args), Says("out", "[6, 24]", "[6, 32]"));
}

TEST_F(RunRefuses, FewerRowsThanThePlans) {
  const HostTensor few(DType::kBFloat16, {call_.plans[0]->rows - 1, 16});
  args_.rows = few.arg();
  EXPECT_THAT(refusal(args_),
              Says("rows", std::to_string(call_.plans[0]->rows), std::to_string(call_.plans[0]->rows - 1)));
}

TEST_F(RunRefuses, AnotherNumberOfSlots) {
  const HostTensor ids(DType::kInt32, {6, 3});
  args_.topk_ids = ids.arg();
  EXPECT_THAT(refusal(args_), Says("topk_ids", "top_k = 2", "[6, 3]"));
}

TEST_F(RunRefuses, IdsOutsideTheExperts) {
  HostTensor ids(DType::kInt64, {6, 2});
  ids.put(7, int64_t{1} << 40);
  args_.topk_ids = ids.arg();
  EXPECT_THAT(refusal(args_), Says("topk_ids", "rank 0", "token 3", "slot 1", "1099511627776"));
}

TEST_F(RunRefuses, IdsThatDoNotBelongToThePlan) {
  HostTensor ids = scenario_.ids[0].clone();
  ids.put(0, ids.get_id(0) == 0 ? 1 : 0);
  args_.topk_ids = ids.arg();
  EXPECT_THAT(refusal(args_), Says("topk_ids", "plan", "rank 0", "expert 0"));
}

TEST_F(RunRefuses, AReadOnlyOutput) {
  args_.out.read_only = true;
  EXPECT_THAT(refusal(args_), Says("out", "read-only"));
}

TEST_F(RunRefuses, AnOutputThatSharesMemoryWithAnInput) {
  // A pool that holds everything; the output lies over one input at a time.
  HostTensor pool(DType::kBFloat16, {8192});
  const auto view = [&](HostTensor& tensor, std::vector<int64_t>& shape) {
    tensor.dl().data = pool.data();
    tensor.dl().shape = shape.data();
    return tensor.arg();
  };
  std::vector<int64_t> out_shape{6, 24}, rows_shape{call_.plans[0]->rows, 16}, weights_shape{3, 24, 16},
      pairs_shape{6, 2};
  HostTensor out(DType::kBFloat16, {6, 24}), rows(DType::kBFloat16, {1, 1}), weights(DType::kBFloat16, {1, 1, 1}),
      ids = scenario_.ids[0].clone(), gates(DType::kFloat32, {1, 1});
  std::memcpy(pool.data(), ids.data(), ids.bytes());
  args_.out = view(out, out_shape);
  RunArgs args = args_;
  args.rows = view(rows, rows_shape);
  EXPECT_THAT(refusal(args), Says("out", "shares memory", "rows"));
  args = args_, args.weights = view(weights, weights_shape);
  EXPECT_THAT(refusal(args), Says("out", "shares memory", "weights"));
  args = args_, args.topk_ids = view(ids, pairs_shape);
  EXPECT_THAT(refusal(args), Says("out", "shares memory", "topk_ids"));
  args = args_, args.topk_weights = view(gates, pairs_shape);
  EXPECT_THAT(refusal(args), Says("out", "shares memory", "topk_weights"));
}

TEST_F(RunRefuses, MemoryOfAnotherDevice) {
  HostTensor rows = call_.rows[0].clone();
  rows.dl().device = {kDLCUDA, 0};
  args_.rows = rows.arg();
  EXPECT_THAT(refusal(args_), Says("rows", "cuda:0", "cpu"));
}

TEST_F(RunRefuses, TransposedWeightsAndRepeatedRows) {
  HostTensor weights = scenario_.weights[0].clone(), rows = call_.rows[0].clone();
  std::array<int64_t, 3> transposed{24 * 16, 1, 24};
  weights.dl().strides = transposed.data();
  RunArgs args = args_;
  args.weights = weights.arg();
  EXPECT_THAT(refusal(args), Says("weights", "contiguous", "[384, 1, 24]"));
  std::array<int64_t, 2> repeated{0, 1};
  rows.dl().strides = repeated.data();
  args = args_, args.rows = rows.arg();
  EXPECT_THAT(refusal(args), Says("rows", "contiguous", "[0, 1]"));
}

TEST_F(RunRefuses, ThePlanOfAnotherRank) { EXPECT_THAT(refusal(call_.plans[1]), Says("plan", "rank", "1", "0")); }

TEST_F(RunRefuses, APlanOfAnotherPlacement) {
  const Placement other = Placement::from_begins({0, 2, 6});
  const Plan plan =
      make_plan(other, 0, RouteCounts(other, std::vector<int32_t>(12, 0)), 24, {.tile_m = 4, .tile_n = 8});
  EXPECT_THAT(refusal(plan), Says("plan", "placement", "[0, 2, 6]", "[0, 3, 6]"));
}

TEST_F(RunRefuses, APlanOfOtherSizes) {
  const RouteCounts counts = counts_of(scenario_);
  const auto plan = [&](int64_t n, const PlanOptions& options) {
    return make_plan(scenario_.placement, 0, counts, n, options);
  };
  EXPECT_THAT(refusal(plan(32, {.tile_m = 4, .tile_n = 8})), Says("plan", "n = 32", "n = 24"));
  EXPECT_THAT(refusal(plan(24, {.tile_m = 2, .tile_n = 8})), Says("plan", "tile_m = 2", "tile_m = 4"));
  EXPECT_THAT(refusal(plan(24, {.tile_m = 4, .tile_n = 16})), Says("plan", "tile_n = 16", "tile_n = 8"));
  EXPECT_THAT(refusal(plan(24, {.tile_m = 4, .tile_n = 8, .layout = Layout::kOwnerAligned})),
              Says("plan", "owner_aligned", "compact"));
}

TEST_F(RunRefuses, APlanInWhichAnotherRankSendsMoreThanFits) {
  // Rank 0's own tokens are few; it refuses all the same, or it would wait for a rank that refuses.
  const RouteCounts counts = counts_of(scenario_);
  std::vector<int32_t> values(counts.values().begin(), counts.values().end());
  for (size_t expert = 0; expert < 6; ++expert) values[6 + expert] = expert == 2 ? 13 : 0;  // max_tokens * top_k = 12
  const Plan plan =
      make_plan(scenario_.placement, 0, RouteCounts(scenario_.placement, values), 24, {.tile_m = 4, .tile_n = 8});
  EXPECT_THAT(refusal<CapacityError>(plan), Says("rank 1", "13", "12"));
}

TEST_F(RunRefuses, MoreTokensThanPrepared) {
  HostTensor ids(DType::kInt32, {7, 2});
  ids.fill(-1);
  args_.topk_ids = ids.arg();
  EXPECT_THAT(refusal<CapacityError>(args_), Says("rank 0", "T = 7", "max_tokens = 6"));
}

TEST(RunRefusesATile, OfAnotherHeightThanTheKernels) {
  // Rows packed for 64-row tiles, multiplied in 128-row tiles, would meet the wrong expert's weights.
  Random random(2);
  Scenario scenario = make_scenario(random, {.placement = Placement::even(2, 3), .top_k = 1, .tokens = {323, 0}});
  for (int64_t i = 0; i < 323; ++i) scenario.ids[0].put(i, i < 128 ? 0 : i < 258 ? 1 : 2);  // 128, 130 and 65 rows
  WorldSetup setup;
  setup.plan = {.tile_m = 128, .tile_n = 16};
  SessionWorld world(scenario, setup);
  Call call = world.make_call(scenario);
  call.plans[0] = make_plan(scenario.placement, 0, counts_of(scenario), scenario.n, {.tile_m = 64, .tile_n = 16});
  EXPECT_THAT(message_of<InvalidArgument>([&] { world.start(0, scenario, call); }),
              Says("tile_m = 64", "tile_m = 128"));
}

TEST(RunAccepts, ReadOnlyInputsOfEveryKind) {
  // SessionWorld::args marks all inputs read-only; here they are writable, which must not matter either.
  Random random(3);
  const Scenario scenario = make_scenario(random, {.placement = Placement::even(2, 6), .top_k = 2, .tokens = {6, 5}});
  SessionWorld world(scenario, {});
  const Call call = world.make_call(scenario);
  const auto before = call.rows[0].clone();
  for (int32_t rank = 0; rank < 2; ++rank) {
    RunArgs args = SessionWorld::args(scenario, call, rank);
    args.rows.read_only = args.weights.tensor.read_only = args.topk_ids.read_only = args.topk_weights.read_only = false;
    world.session(rank).run(call.plans[static_cast<size_t>(rank)], args);
  }
  world.synchronize_all();
  EXPECT_TRUE(same_bits(call.outs, exact_results(scenario)));
  EXPECT_TRUE(call.rows[0] == before);  // and are not written
}

}  // namespace
}  // namespace tileoverlap
