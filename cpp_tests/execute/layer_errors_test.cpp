// A layer call that one rank refuses: its message there, CallRefused on the others, and the layer goes on.

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "support/compare.hpp"
#include "support/layer_world.hpp"
#include "support/messages.hpp"

namespace tileoverlap {
namespace {

using std::chrono::steady_clock;
using testing::HostTensor;
using testing::LayerInputs;
using testing::LayerWorld;
using testing::make_layer_inputs;
using testing::message_of;
using testing::Random;
using testing::same_bits;
using testing::Says;
using testing::WorldSetup;

// Three ranks, two experts each, hidden 32, inner 16, top 2, T = 6, 5 and 4.
class ForwardRefuses : public ::testing::Test {
 protected:
  explicit ForwardRefuses(ExpertKind kind = ExpertKind::kGelu)
      : inputs_(make_layer_inputs(
            random_, {.placement = Placement::even(3, 6), .expert = kind, .top_k = 2, .tokens = {6, 5, 4}})),
        expected_(LayerWorld(inputs_, {}).run(inputs_)),
        world_(inputs_, {}),
        outs_(LayerWorld::make_outs(inputs_)),
        args_(LayerWorld::args(inputs_, outs_, 1)) {}

  // Rank 1 makes its call with `args`; the others make a good one. Returns what rank 1 said.
  template <class ErrorType = InvalidArgument>
  std::string refusal(const LayerArgs& args) {
    world_.start(0, inputs_, outs_);
    const std::string said = message_of<ErrorType>([&] { world_.layer(1).forward(args); });
    world_.start(2, inputs_, outs_);
    for (const int32_t rank : {0, 2}) {
      const std::string told = message_of<CallRefused>([&] { world_.layer(rank).synchronize(); });
      EXPECT_THAT(told, Says("rank 1"));
      EXPECT_NE(told.find(said), std::string::npos) << told;  // the reason is passed on
    }
    world_.layer(1).synchronize();
    for (int32_t rank = 0; rank < 3; ++rank) {
      EXPECT_EQ(world_.layer(rank).epoch(), 0u);
      EXPECT_TRUE(std::isnan(outs_[static_cast<size_t>(rank)].get(0)));  // nothing was written on any rank
    }
    return said;
  }

  ~ForwardRefuses() override { EXPECT_TRUE(same_bits(world_.run(inputs_), expected_)); }

  Random random_{1};
  LayerInputs inputs_;
  std::vector<HostTensor> expected_;
  LayerWorld world_;
  std::vector<HostTensor> outs_;
  LayerArgs args_;
};

TEST_F(ForwardRefuses, MissingTensorsByName) {
  using Member = TensorArg& (*)(LayerArgs&);
  for (const auto& [argument, member] : std::initializer_list<std::pair<const char*, Member>>{
           {"x", [](LayerArgs& args) -> TensorArg& { return args.x; }},
           {"topk_ids", [](LayerArgs& args) -> TensorArg& { return args.topk_ids; }},
           {"topk_weights", [](LayerArgs& args) -> TensorArg& { return args.topk_weights; }},
           {"up", [](LayerArgs& args) -> TensorArg& { return args.up.tensor; }},
           {"down", [](LayerArgs& args) -> TensorArg& { return args.down.tensor; }},
           {"out", [](LayerArgs& args) -> TensorArg& { return args.out; }}}) {
    LayerArgs args = args_;
    member(args) = {};
    EXPECT_THAT(refusal(args), Says(argument, "missing"));
  }
}

TEST_F(ForwardRefuses, OtherDTypesAndShapes) {
  const HostTensor single(DType::kFloat32, {5, 32}), narrow(DType::kBFloat16, {5, 16}), more(DType::kBFloat16, {6, 32}),
      up(DType::kBFloat16, {2, 32, 16}), down(DType::kBFloat16, {2, 16, 32}), gates(DType::kFloat32, {5, 3});
  LayerArgs args = args_;
  args.x = single.arg();
  EXPECT_THAT(refusal<DTypeError>(args), Says("x", "bfloat16", "float32"));
  args.x = narrow.arg();
  EXPECT_THAT(refusal(args), Says("x", "[5, 32]", "[5, 16]"));
  args.x = more.arg();
  EXPECT_THAT(refusal(args), Says("x", "[5, 32]", "[6, 32]"));
  args = args_, args.up = up.arg();
  EXPECT_THAT(refusal(args), Says("up", "[2, 16, 32]", "[2, 32, 16]"));
  args = args_, args.down = down.arg();
  EXPECT_THAT(refusal(args), Says("down", "[2, 32, 16]", "[2, 16, 32]"));
  args = args_, args.topk_weights = gates.arg();
  EXPECT_THAT(refusal(args), Says("topk_weights", "[5, 2]", "[5, 3]"));
}

TEST_F(ForwardRefuses, IdsOutsideTheExperts) {
  HostTensor ids(DType::kInt64, {5, 2});
  ids.put(3, 6);
  args_.topk_ids = ids.arg();
  EXPECT_THAT(refusal(args_), Says("topk_ids", "rank 1", "token 1", "slot 1", "got 6"));
}

TEST_F(ForwardRefuses, MoreTokensThanPrepared) {
  const HostTensor ids(DType::kInt32, {7, 2});
  args_.topk_ids = ids.arg();
  EXPECT_THAT(refusal<CapacityError>(args_), Says("rank 1", "T = 7", "max_tokens = 6"));
}

TEST_F(ForwardRefuses, OutputsThatCannotBeWritten) {
  LayerArgs args = args_;
  args.out.read_only = true;
  EXPECT_THAT(refusal(args), Says("out", "read-only"));
  args = args_, args.x = outs_[1].arg();
  EXPECT_THAT(refusal(args), Says("out", "shares memory", "x"));
}

class SingleRefuses : public ForwardRefuses {
 protected:
  SingleRefuses() : ForwardRefuses(ExpertKind::kSingle) {}
};

TEST_F(SingleRefuses, AFirstProjectionThatItDoesNotHave) {
  args_.up = inputs_.up[1].arg();
  EXPECT_THAT(refusal(args_), Says("up", "single"));
}

class GateRefuses : public ForwardRefuses {
 protected:
  GateRefuses() : ForwardRefuses(ExpertKind::kSiluGate) {}
};

TEST_F(GateRefuses, AFirstProjectionWithoutItsGate) {
  const HostTensor up(DType::kBFloat16, {2, 16, 32});
  args_.up = up.arg();
  EXPECT_THAT(refusal(args_), Says("up", "2 * inner", "[2, 32, 32]", "[2, 16, 32]"));
}

TEST_F(ForwardRefuses, TheFirstOfSeveralRefusedCallsIsTold) {
  LayerArgs first = args_, second = args_;
  first.x = {};
  second.out = {};
  for (int32_t call = 0; call < 2; ++call) {
    world_.start(0, inputs_, outs_);
    world_.start(2, inputs_, outs_);
    message_of<InvalidArgument>([&] { world_.layer(1).forward(call == 0 ? first : second); });
  }
  for (const int32_t rank : {0, 2}) {
    EXPECT_THAT(message_of<CallRefused>([&] { world_.layer(rank).synchronize(); }), Says("rank 1", "x", "missing"));
    world_.layer(rank).synchronize();  // told once
  }
}

TEST_F(ForwardRefuses, AGoodCallBehindARefusedOneRuns) {
  LayerArgs bad = args_;
  bad.x = {};
  world_.start(0, inputs_, outs_);
  world_.start(2, inputs_, outs_);
  message_of<InvalidArgument>([&] { world_.layer(1).forward(bad); });
  for (int32_t rank = 0; rank < 3; ++rank) world_.start(rank, inputs_, outs_);
  for (const int32_t rank : {0, 2}) message_of<CallRefused>([&] { world_.layer(rank).synchronize(); });
  world_.layer(1).synchronize();
  EXPECT_TRUE(same_bits(outs_, expected_));
  for (int32_t rank = 0; rank < 3; ++rank) EXPECT_EQ(world_.layer(rank).epoch(), 1u);
}

TEST_F(ForwardRefuses, AllRanksAtOnce) {
  for (int32_t rank = 0; rank < 3; ++rank) {
    LayerArgs args = LayerWorld::args(inputs_, outs_, rank);
    args.down = {};
    EXPECT_THAT(message_of<InvalidArgument>([&] { world_.layer(rank).forward(args); }), Says("down", "missing"));
  }
  for (int32_t rank = 0; rank < 3; ++rank) world_.layer(rank).synchronize();  // forward has told each its reason
}

LayerInputs small_layer(int32_t world) {
  Random random(2);
  LayerInputs inputs = make_layer_inputs(random, {.placement = Placement::even(world, world),
                                                  .top_k = world,
                                                  .tokens = std::vector<int64_t>(static_cast<size_t>(world), 3)});
  for (HostTensor& ids : inputs.ids) {
    for (int64_t i = 0; i < ids.elements(); ++i) ids.put(i, i % world);
  }
  return inputs;
}

TEST(LayerLimits, ARankThatNeverCallsIsNamedByAllOthers) {
  const LayerInputs inputs = small_layer(3);
  WorldSetup setup;
  setup.timeout_ns = 200'000'000;
  LayerWorld world(inputs, setup);
  const auto outs = LayerWorld::make_outs(inputs);
  const auto begin = steady_clock::now();
  for (const int32_t rank : {0, 2}) world.start(rank, inputs, outs);
  for (const int32_t rank : {0, 2}) {
    try {
      world.layer(rank).synchronize();
      ADD_FAILURE() << "rank " << rank << " did not notice";
    } catch (const WaitTimeout& error) {
      EXPECT_EQ(error.record().what, WaitFor::kCounts);
      EXPECT_EQ(error.record().peer, 1);
      EXPECT_THAT(error.what(), Says("rank " + std::to_string(rank), "routing", "rank 1", "epoch 1", "0.2 s"));
    }
  }
  EXPECT_LT(steady_clock::now() - begin, std::chrono::seconds(2));
  EXPECT_THROW(world.start(0, inputs, outs), WaitTimeout);  // the layer cannot be used again
  EXPECT_THROW(world.layer(0).check(), WaitTimeout);
}

TEST(LayerLimits, AWithheldBandIsNamed) {
  const LayerInputs inputs = small_layer(2);
  WorldSetup setup;
  setup.timeout_ns = 200'000'000;
  setup.cpu = {{.faults = {.withhold_band = 0}}, {}};
  LayerWorld world(inputs, setup);
  const auto outs = LayerWorld::make_outs(inputs);
  for (int32_t rank = 0; rank < 2; ++rank) world.start(rank, inputs, outs);
  EXPECT_THAT(message_of<WaitTimeout>([&] { world.layer(0).synchronize(); }),
              Says("rank 0", "expert 0", "band 0", "epoch 1"));
  EXPECT_THAT(message_of<WaitTimeout>([&] { world.layer(1).synchronize(); }),
              Says("rank 1", "rank 0", "band 0", "epoch 1"));
}

TEST(LayerLimits, ARankThatClosesIsNoticed) {
  const LayerInputs inputs = small_layer(3);
  LayerWorld world(inputs, {});
  const auto outs = LayerWorld::make_outs(inputs);
  const auto begin = steady_clock::now();
  world.start(0, inputs, outs);
  world.start(1, inputs, outs);
  world.close(2);
  for (const int32_t rank : {0, 1}) {
    EXPECT_THAT(message_of<WaitTimeout>([&] { world.layer(rank).synchronize(); }), Says("rank 2", "closed"));
  }
  EXPECT_LT(steady_clock::now() - begin, std::chrono::seconds(20));
}

TEST(LayerLimits, LayersWithCallsOutstandingCanBeDestroyed) {
  const LayerInputs inputs = small_layer(3);
  const auto begin = steady_clock::now();
  for (int round = 0; round < 5; ++round) {
    WorldSetup setup;
    setup.cpu = {{.faults = {.shuffle_seed = 1, .max_delay_us = 300}}};
    std::vector<std::vector<HostTensor>> outs;  // outlive the layers that borrow them
    LayerWorld world(inputs, setup);
    for (int call = 0; call < 4; ++call) {
      outs.push_back(LayerWorld::make_outs(inputs));
      for (int32_t rank = 0; rank < 3; ++rank) {
        if (rank < 2 || call < 2) world.start(rank, inputs, outs.back());
      }
    }
    std::this_thread::sleep_for(std::chrono::microseconds(400 * round));
  }
  EXPECT_LT(steady_clock::now() - begin, std::chrono::seconds(20));
}

}  // namespace
}  // namespace tileoverlap
