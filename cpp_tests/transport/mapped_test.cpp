// The transport over memory that somebody else has mapped: here one piece of the heap, cut into a region a rank.

#include "tileoverlap/transport/mapped.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "support/layer_world.hpp"
#include "support/messages.hpp"
#include "support/random.hpp"
#include "support/rank_threads.hpp"
#include "support/scenario.hpp"
#include "support/session_world.hpp"
#include "tileoverlap/core/error.hpp"
#include "tileoverlap/transport/in_process.hpp"

namespace tileoverlap {
namespace {

using testing::kNoLimitReached;
using testing::message_of;
using testing::on_each_rank;
using testing::Says;

std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }
std::string text_of(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

enum class Gather { kNone, kGiven };

// The regions of all ranks and what their transports are made from.
class Regions {
 public:
  Regions(int32_t world, size_t bytes, Gather gather) : world_(world) {
    const size_t all = static_cast<size_t>(world) * bytes;
    memory_ = std::shared_ptr<std::byte>(static_cast<std::byte*>(std::aligned_alloc(256, all)), std::free);
    std::memset(memory_.get(), 0, all);
    const auto process = make_in_process_world(world);
    for (int32_t rank = 0; rank < world; ++rank) {
      MappedOptions& options = options_.emplace_back();
      options.rank = rank;
      options.world = world;
      options.bytes = bytes;
      options.owner = memory_;
      for (int32_t peer = 0; peer < world; ++peer) {
        options.bases.push_back(memory_.get() + static_cast<size_t>(peer) * bytes);
      }
      if (gather == Gather::kNone) continue;
      const std::shared_ptr<Exchange> exchange = process[static_cast<size_t>(rank)]->open_exchange();
      options.all_gather = [exchange](std::span<const std::byte> mine) {
        return exchange->all_gather(mine, kNoLimitReached);
      };
    }
  }

  int32_t world() const { return world_; }
  MappedOptions& options(int32_t rank) { return options_[static_cast<size_t>(rank)]; }
  std::vector<std::shared_ptr<Transport>> transports() const {
    std::vector<std::shared_ptr<Transport>> result;
    for (const MappedOptions& options : options_) result.push_back(make_mapped_transport(options));
    return result;
  }

 private:
  int32_t world_;
  std::shared_ptr<std::byte> memory_;
  std::vector<MappedOptions> options_;
};

constexpr size_t kRegion = size_t{1} << 20;

// One allocation on each rank, each from a thread of its own.
std::vector<std::shared_ptr<SymmetricMemory>> allocate_all(const std::vector<std::shared_ptr<Transport>>& transports,
                                                           const std::string& terms, size_t bytes) {
  std::vector<std::shared_ptr<SymmetricMemory>> result(transports.size());
  on_each_rank(static_cast<int32_t>(transports.size()), [&](int32_t rank) {
    const auto r = static_cast<size_t>(rank);
    result[r] = transports[r]->allocate(terms, bytes);
  });
  return result;
}

TEST(MappedTransport, SaysWhatItWasMadeFrom) {
  Regions regions(2, kRegion, Gather::kNone);
  regions.options(1).device = {kDLCUDA, 3};
  regions.options(1).ranks_on_device = 2;
  const auto transport = make_mapped_transport(regions.options(1));
  EXPECT_EQ(transport->rank(), 1);
  EXPECT_EQ(transport->world(), 2);
  EXPECT_EQ(transport->device().device_type, kDLCUDA);
  EXPECT_EQ(transport->device().device_id, 3);
  EXPECT_EQ(transport->ranks_on_device(), 2);
  EXPECT_THAT(transport->repr(), Says("MappedTransport", "1", "2", "cuda:3", std::to_string(kRegion)));
}

TEST(MappedTransport, GivesTheSameOffsetsOnAllRanksAtMultiplesOf256) {
  Regions regions(2, kRegion, Gather::kNone);
  const auto transports = regions.transports();
  const auto first0 = transports[0]->allocate("a", 1), second0 = transports[0]->allocate("b", 257);
  const auto third0 = transports[0]->allocate("c", 0);
  const auto first1 = transports[1]->allocate("a", 1), second1 = transports[1]->allocate("b", 257);
  const auto* base0 = static_cast<std::byte*>(regions.options(0).bases[0]);
  const auto* base1 = static_cast<std::byte*>(regions.options(0).bases[1]);
  EXPECT_EQ(first0->local(), base0);
  EXPECT_EQ(second0->local(), base0 + 256);
  EXPECT_EQ(third0->local(), base0 + 768);
  EXPECT_EQ(first0->peer(1), base1);
  EXPECT_EQ(second0->peer(1), base1 + 256);
  EXPECT_EQ(second1->local(), base1 + 256);
  EXPECT_EQ(second1->peer(0), base0 + 256);
  EXPECT_EQ(first1->bytes(), 1u);
  EXPECT_EQ(second1->bytes(), 257u);
}

TEST(MappedTransport, SaysHowMuchIsLeftWhereThereIsNoRoom) {
  Regions regions(1, 1024, Gather::kNone);
  const auto transport = make_mapped_transport(regions.options(0));
  const auto kept = transport->allocate("a", 300);
  EXPECT_THAT(message_of<Error>([&] { transport->allocate("b", 513); }), Says("rank 0", "513", "512", "1024"));
  EXPECT_THAT(message_of<Error>([&] { transport->allocate("b", ~size_t{0}); }), Says("18446744073709551615"));
  EXPECT_EQ(transport->allocate("b", 512)->local(), kept->local() + 512);  // a refused call takes nothing
  EXPECT_THAT(message_of<Error>([&] { transport->allocate("c", 1); }), Says("1 bytes", "0 bytes", "1024"));
}

TEST(MappedTransport, TakesTheLastBytesOfARegionThatIsNoMultipleOf256) {
  Regions regions(1, 1024, Gather::kNone);
  regions.options(0).bytes = 300;
  const auto transport = make_mapped_transport(regions.options(0));
  const auto kept = transport->allocate("a", 299);
  EXPECT_THAT(message_of<Error>([&] { transport->allocate("b", 1); }), Says("1 bytes", "0 bytes", "300"));
}

TEST(MappedTransport, RefusesWhatCannotBe) {
  const auto message = [](auto change) {
    Regions regions(2, kRegion, Gather::kNone);
    change(regions.options(0));
    return message_of<InvalidArgument>([&] { make_mapped_transport(regions.options(0)); });
  };
  EXPECT_THAT(message([](MappedOptions& o) { o.world = 0; }), Says("world", "1", "0"));
  EXPECT_THAT(message([](MappedOptions& o) { o.rank = 2; }), Says("rank", "0..1", "2"));
  EXPECT_THAT(message([](MappedOptions& o) { o.rank = -1; }), Says("rank", "0..1", "-1"));
  EXPECT_THAT(message([](MappedOptions& o) { o.bases.pop_back(); }), Says("bases", "2", "1"));
  EXPECT_THAT(message([](MappedOptions& o) { o.bases[1] = nullptr; }), Says("rank 1", "null"));
  EXPECT_THAT(message([](MappedOptions& o) { o.bases[1] = static_cast<std::byte*>(o.bases[1]) + 16; }),
              Says("rank 1", "256", "16 bytes"));
  EXPECT_THAT(message([](MappedOptions& o) { o.bases[1] = o.bases[0]; }), Says("ranks 0 and 1", "overlap"));
  EXPECT_THAT(message([](MappedOptions& o) { o.bases[1] = static_cast<std::byte*>(o.bases[0]) + 256; }),
              Says("ranks 0 and 1", "256 bytes", std::to_string(kRegion)));
  EXPECT_THAT(message([](MappedOptions& o) { o.bytes = 0; }), Says("bytes", "0"));
  EXPECT_THAT(message([](MappedOptions& o) { o.ranks_on_device = 0; }), Says("ranks_on_device", "1..2", "0"));
  EXPECT_THAT(message([](MappedOptions& o) { o.ranks_on_device = 3; }), Says("ranks_on_device", "1..2", "3"));
}

TEST(MappedTransport, KeepsTheOwnerAsLongAsItsMemoryIsHeld) {
  auto owner = std::make_shared<int>(0);
  std::shared_ptr<SymmetricMemory> memory;
  {
    Regions regions(1, kRegion, Gather::kNone);
    regions.options(0).owner = owner;
    memory = make_mapped_transport(regions.options(0))->allocate("a", 8);
  }
  EXPECT_EQ(owner.use_count(), 2);
  memory.reset();
  EXPECT_EQ(owner.use_count(), 1);
}

TEST(MappedTransport, WithoutAllGatherHasNoHostExchange) {
  Regions regions(2, kRegion, Gather::kNone);
  const auto transport = make_mapped_transport(regions.options(1));
  const auto exchange = transport->open_exchange();
  const auto memory = transport->allocate("a", 8);
  EXPECT_THAT(message_of<Error>([&] { exchange->post(bytes_of("x")); }), Says("rank 1", "no host exchange"));
  EXPECT_THAT(message_of<Error>([&] { memory->exchange().all_gather(bytes_of("x"), 1); }),
              Says("rank 1", "no host exchange"));
}

TEST(MappedTransport, RefusesOtherTermsOnAllRanksWhichMayTryAgain) {
  Regions regions(2, kRegion, Gather::kGiven);
  const auto transports = regions.transports();
  on_each_rank(2, [&](int32_t rank) {
    const auto& transport = transports[static_cast<size_t>(rank)];
    const std::string mine = rank == 0 ? "max_tokens=64 top_k=2" : "max_tokens=32 top_k=2";
    EXPECT_THAT(message_of<InvalidArgument>([&] { transport->allocate(mine, 64); }),
                Says("rank 0", "rank 1", "max_tokens=64", "max_tokens=32"));
    EXPECT_THAT(message_of<InvalidArgument>([&] { transport->allocate("same", rank == 0 ? 64 : 128); }),
                Says("rank 0", "rank 1", "64 bytes", "128 bytes"));
  });
  const auto memory = allocate_all(transports, "same", 64);
  EXPECT_EQ(memory[0]->local(), regions.options(0).bases[0]);
  EXPECT_EQ(memory[0]->peer(1), memory[1]->local());
}

TEST(MappedTransport, RefusesRegionsOfDifferentSizes) {
  Regions regions(2, 1024, Gather::kGiven);
  regions.options(1).bytes = 512;
  const auto transports = regions.transports();
  on_each_rank(2, [&](int32_t rank) {
    EXPECT_THAT(message_of<InvalidArgument>([&] { transports[static_cast<size_t>(rank)]->allocate("a", 64); }),
                Says("rank 0", "rank 1", "1024", "512"));
  });
}

TEST(MappedTransport, StartsOverWithZeroesOnceAllRanksHaveLetGoOfEverything) {
  Regions regions(2, 1024, Gather::kGiven);
  const auto transports = regions.transports();
  auto first = allocate_all(transports, "a", 512), second = allocate_all(transports, "b", 512);
  for (const auto& memory : {first[0], first[1], second[0], second[1]}) std::memset(memory->local(), 0xff, 512);
  second.clear();
  on_each_rank(2, [&](int32_t rank) {  // the first allocation is still held
    EXPECT_THAT(message_of<Error>([&] { transports[static_cast<size_t>(rank)]->allocate("c", 8); }),
                Says("8 bytes", "0 bytes", "1024"));
  });
  first[0].reset();
  on_each_rank(2, [&](int32_t rank) {  // by rank 1
    EXPECT_THAT(message_of<Error>([&] { transports[static_cast<size_t>(rank)]->allocate("c", 8); }),
                Says("8 bytes", "0 bytes", "1024"));
  });
  first[1].reset();
  const auto again = allocate_all(transports, "c", 1024);
  for (size_t rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(again[rank]->local(), regions.options(0).bases[rank]);
    EXPECT_TRUE(
        std::all_of(again[rank]->local(), again[rank]->local() + 1024, [](std::byte b) { return b == std::byte{0}; }));
  }
}

TEST(MappedTransport, UsesNothingTwiceWithoutAllGather) {
  Regions regions(1, 1024, Gather::kNone);
  const auto transport = make_mapped_transport(regions.options(0));
  transport->allocate("a", 1024).reset();
  EXPECT_THAT(message_of<Error>([&] { transport->allocate("b", 8); }), Says("8 bytes", "0 bytes"));
}

TEST(MappedTransport, UsesOtherDevicesMemoryTwiceOnlyWhereItCanBeZeroed) {
  Regions regions(1, 1024, Gather::kGiven);
  regions.options(0).device = {kDLCUDA, 0};
  const auto fixed = make_mapped_transport(regions.options(0));
  fixed->allocate("a", 1024).reset();
  EXPECT_THAT(message_of<Error>([&] { fixed->allocate("b", 8); }), Says("8 bytes", "0 bytes"));

  Regions others(1, 1024, Gather::kGiven);
  others.options(0).device = {kDLCUDA, 0};
  std::vector<std::pair<void*, size_t>> zeroed;
  others.options(0).zero = [&](std::byte* memory, size_t bytes) { zeroed.emplace_back(memory, bytes); };
  const auto transport = make_mapped_transport(others.options(0));
  transport->allocate("a", 300).reset();
  EXPECT_EQ(transport->allocate("b", 8)->local(), others.options(0).bases[0]);
  EXPECT_EQ(zeroed, (std::vector<std::pair<void*, size_t>>{{others.options(0).bases[0], 512}}));
}

TEST(MappedTransport, TellsAllRanksWhereOneCannotZeroItsRegion) {
  Regions regions(2, 1024, Gather::kGiven);
  for (int32_t rank = 0; rank < 2; ++rank) {
    regions.options(rank).device = {kDLCUDA, rank};
    regions.options(rank).zero = [rank](std::byte*, size_t) {
      if (rank == 1) throw Error("the device is gone");
    };
  }
  const auto transports = regions.transports();
  allocate_all(transports, "a", 8).clear();
  on_each_rank(2, [&](int32_t rank) {
    EXPECT_THAT(message_of<Error>([&] { transports[static_cast<size_t>(rank)]->allocate("b", 8); }),
                rank == 0 ? Says("rank 1", "cannot zero") : Says("the device is gone"));
  });
}

TEST(MappedExchange, GathersMessagesOfDifferentLengthsByRank) {
  Regions regions(3, kRegion, Gather::kGiven);
  const auto transports = regions.transports();
  on_each_rank(3, [&](int32_t rank) {
    const auto exchange = transports[static_cast<size_t>(rank)]->open_exchange();
    for (int round = 0; round < 20; ++round) {
      const std::string mine(static_cast<size_t>(rank * round), static_cast<char>('a' + rank));
      const auto all = exchange->all_gather(bytes_of(mine), kNoLimitReached);
      ASSERT_EQ(all.size(), 3u);
      EXPECT_EQ(text_of(all[0]), "");
      EXPECT_EQ(text_of(all[1]), std::string(static_cast<size_t>(round), 'b'));
      EXPECT_EQ(text_of(all[2]), std::string(static_cast<size_t>(2 * round), 'c'));
    }
  });
}

TEST(MappedExchange, DeliversMessagesThatCrossed) {
  Regions regions(2, kRegion, Gather::kGiven);
  const auto transports = regions.transports();
  on_each_rank(2, [&](int32_t rank) {
    const auto& transport = transports[static_cast<size_t>(rank)];
    const auto a = transport->open_exchange(), b = transport->open_exchange();
    const auto& first = rank == 0 ? a : b;  // the first step carries rank 0's a and rank 1's b
    const auto& second = rank == 0 ? b : a;
    first->post(bytes_of("first"));
    EXPECT_EQ(text_of(second->all_gather(bytes_of("second"), kNoLimitReached)[rank == 0 ? 1 : 0]), "first");
    EXPECT_EQ(text_of(a->all_gather(bytes_of("a"), kNoLimitReached)[1 - static_cast<size_t>(rank)]), "a");
  });
}

TEST(MappedExchange, NamesARankWhoseMessageDoesNotComeAndForgetsClosedExchanges) {
  Regions regions(2, kRegion, Gather::kGiven);
  const auto transports = regions.transports();
  on_each_rank(2, [&](int32_t rank) {
    const auto& transport = transports[static_cast<size_t>(rank)];
    auto a = transport->open_exchange(), b = transport->open_exchange();
    if (rank == 0) {
      EXPECT_THAT(message_of<WaitTimeout>([&] { a->all_gather(bytes_of("a"), 20'000'000); }),
                  Says("rank 0", "rank 1", "0.02 s"));
      EXPECT_EQ(text_of(b->all_gather(bytes_of("x"), kNoLimitReached)[1]), "b");
    } else {
      a.reset();
      b->post(bytes_of("b"));
      b->post(bytes_of("again"));
    }
  });
}

TEST(MappedExchange, EndsWithWhatAllGatherThrewAndSaysSoLater) {
  Regions regions(1, kRegion, Gather::kNone);
  regions.options(0).all_gather = [](std::span<const std::byte>) -> std::vector<std::vector<std::byte>> {
    throw std::runtime_error("connection lost");
  };
  const auto transport = make_mapped_transport(regions.options(0));
  const auto exchange = transport->open_exchange();
  EXPECT_THAT(message_of<std::runtime_error>([&] { exchange->post(bytes_of("x")); }), Says("connection lost"));
  EXPECT_THAT(message_of<Error>([&] { transport->allocate("a", 8); }), Says("rank 0", "connection lost"));
}

TEST(MappedExchange, RefusesAnAllGatherThatReturnsSomethingElse) {
  using Messages = std::vector<std::vector<std::byte>>;
  const auto message = [](auto result) {
    Regions regions(2, kRegion, Gather::kNone);
    regions.options(0).all_gather = [&](std::span<const std::byte> mine) {
      return Messages(result(std::vector(mine.begin(), mine.end())));
    };
    return message_of<Error>([&] { make_mapped_transport(regions.options(0))->open_exchange()->post({}); });
  };
  using Bytes = std::vector<std::byte>;
  EXPECT_THAT(message([](const Bytes& mine) { return Messages{mine}; }), Says("rank 0", "2 messages", "got 1"));
  EXPECT_THAT(message([](const Bytes& mine) { return Messages{Bytes(3), mine}; }), Says("by rank", "number 0"));
  EXPECT_THAT(message([](const Bytes& mine) { return Messages{mine, Bytes(3)}; }), Says("3 bytes", "rank 1"));
}

testing::Scenario some_scenario(int32_t world, uint64_t seed) {
  testing::Random random(seed);
  return make_scenario(random, {.placement = Placement::even(world, 2 * world),
                                .k = 16,
                                .n = 24,
                                .top_k = 3,
                                .tokens = std::vector<int64_t>(static_cast<size_t>(world), 11)});
}

// As SessionWorld's, over the transports given; all ranks' prepare at once.
std::vector<testing::HostTensor> run_sessions(const std::vector<std::shared_ptr<Transport>>& transports,
                                              const testing::Scenario& scenario, int calls) {
  const testing::WorldSetup setup;
  const testing::SessionWorld model(scenario, setup);  // for its plans and tensors
  std::vector<std::unique_ptr<Session>> sessions(transports.size());
  on_each_rank(scenario.world(), [&](int32_t rank) {
    const auto r = static_cast<size_t>(rank);
    sessions[r] = make_cpu_executor(transports[r], setup.cpu_of(rank))->prepare(session_options(scenario, setup));
  });
  testing::Call call = model.make_call(scenario);
  for (int i = 0; i < calls; ++i) {
    for (size_t r = 0; r < sessions.size(); ++r) {
      call.outs[r].poison();
      sessions[r]->run(call.plans[r], testing::SessionWorld::args(scenario, call, static_cast<int32_t>(r)));
    }
    for (const auto& session : sessions) session->synchronize();
  }
  return std::move(call.outs);
}

TEST(MappedTransport, RunsSessionsWithTheBitsOfTheInProcessWorld) {
  for (const Gather gather : {Gather::kNone, Gather::kGiven}) {
    const testing::Scenario scenario = some_scenario(4, 7);
    Regions regions(4, kRegion, gather);
    EXPECT_EQ(run_sessions(regions.transports(), scenario, 3), testing::run_once(scenario, {}));
  }
}

TEST(MappedTransport, RunsSessionAfterSessionInOneRegion) {
  const testing::Scenario scenario = some_scenario(2, 8);
  const auto expected = testing::run_once(scenario, {});
  Regions regions(2, 32 << 10, Gather::kGiven);  // enough for a few
  const auto transports = regions.transports();
  for (int i = 0; i < 20; ++i) ASSERT_EQ(run_sessions(transports, scenario, 2), expected) << "session " << i;
}

testing::LayerInputs some_inputs(int32_t world, uint64_t seed) {
  testing::Random random(seed);
  return make_layer_inputs(random, {.placement = Placement::even(world, 2 * world),
                                    .expert = ExpertKind::kGelu,
                                    .top_k = 2,
                                    .tokens = std::vector<int64_t>(static_cast<size_t>(world), 9)});
}

TEST(MappedTransport, RunsTwoLayersAtOnceWhoseVotesCross) {
  constexpr int32_t kWorld = 3;
  const testing::LayerInputs inputs[2] = {some_inputs(kWorld, 1), some_inputs(kWorld, 2)};
  const testing::WorldSetup setup;
  Regions regions(kWorld, kRegion, Gather::kGiven);
  const auto transports = regions.transports();
  std::vector<std::unique_ptr<MoeLayer>> layers[2];
  for (int i = 0; i < 2; ++i) {
    layers[i].resize(kWorld);
    on_each_rank(kWorld, [&](int32_t rank) {
      const auto r = static_cast<size_t>(rank);
      layers[i][r] = make_cpu_executor(transports[r])->prepare_layer(layer_options(inputs[i], setup));
    });
  }
  for (int call = 0; call < 10; ++call) {
    std::vector<testing::HostTensor> outs[2] = {testing::LayerWorld::make_outs(inputs[0]),
                                                testing::LayerWorld::make_outs(inputs[1])};
    on_each_rank(kWorld, [&](int32_t rank) {
      for (int i = 0; i < 2; ++i) {
        const int which = rank % 2 == 0 ? i : 1 - i;
        layers[which][static_cast<size_t>(rank)]->forward(testing::LayerWorld::args(inputs[which], outs[which], rank));
      }
      for (int i = 0; i < 2; ++i) layers[i][static_cast<size_t>(rank)]->synchronize();
    });
    for (int i = 0; i < 2; ++i) ASSERT_EQ(outs[i], testing::LayerWorld(inputs[i], setup).run(inputs[i]));
  }
}

TEST(MappedTransport, SaysThatALayerNeedsAHostExchange) {
  const testing::LayerInputs inputs = some_inputs(1, 3);
  Regions regions(1, kRegion, Gather::kNone);
  const auto layer = make_cpu_executor(make_mapped_transport(regions.options(0)))
                         ->prepare_layer(layer_options(inputs, testing::WorldSetup{}));
  const auto outs = testing::LayerWorld::make_outs(inputs);
  layer->forward(testing::LayerWorld::args(inputs, outs, 0));
  EXPECT_THAT(message_of<Error>([&] { layer->synchronize(); }), Says("no host exchange", "all_gather"));
}

}  // namespace
}  // namespace tileoverlap
