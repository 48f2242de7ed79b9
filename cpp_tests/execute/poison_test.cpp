// The poison that other tests rely on: memory that nobody may read is full of NaN, so that a stale or early read shows.

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "support/compare.hpp"
#include "support/session_world.hpp"

namespace tileoverlap {
namespace {

using testing::Call;
using testing::make_scenario;
using testing::Random;
using testing::Scenario;
using testing::SessionWorld;
using testing::WorldSetup;

// Hands out the memory of another transport and remembers it.
class SpyTransport final : public Transport {
 public:
  explicit SpyTransport(std::shared_ptr<Transport> inner) : inner_(std::move(inner)) {}
  int32_t world() const override { return inner_->world(); }
  int32_t rank() const override { return inner_->rank(); }
  std::shared_ptr<SymmetricMemory> allocate(const std::string& terms, size_t bytes) override {
    return memory_ = inner_->allocate(terms, bytes);
  }
  std::unique_ptr<Exchange> open_exchange() override { return inner_->open_exchange(); }
  std::string repr() const override { return inner_->repr(); }

  int64_t poisoned_bytes() const {
    const std::byte* data = memory_->local();
    return std::count(data, data + memory_->bytes(), std::byte{0xff});
  }

 private:
  std::shared_ptr<Transport> inner_;
  std::shared_ptr<SymmetricMemory> memory_;
};

// Bytes of 0xFF in rank 0's shared memory after prepare, and after one call.
std::pair<int64_t, int64_t> poison_of(const Scenario& scenario, bool poison) {
  const WorldSetup setup;
  const SessionWorld shapes(scenario, setup);  // for plans and tensors only
  const Call call = shapes.make_call(scenario);
  std::vector<std::shared_ptr<SpyTransport>> spies;
  std::vector<std::unique_ptr<Session>> sessions;
  for (const auto& transport : make_in_process_world(scenario.world())) {
    spies.push_back(std::make_shared<SpyTransport>(transport));
    sessions.push_back(
        make_cpu_executor(spies.back(), {.faults = {.poison = poison}})->prepare(session_options(scenario, setup)));
  }
  const int64_t before = spies[0]->poisoned_bytes();
  for (int32_t rank = 0; rank < scenario.world(); ++rank) {
    const auto r = static_cast<size_t>(rank);
    sessions[r]->run(call.plans[r], SessionWorld::args(scenario, call, rank));
  }
  for (const auto& session : sessions) session->synchronize();
  EXPECT_TRUE(testing::same_bits(call.outs, exact_results(scenario)));
  return {before, spies[0]->poisoned_bytes()};
}

TEST(Poison, FillsStagingBeforeTheFirstCallAndAfterEveryCall) {
  Random random(1);
  const Scenario scenario =
      make_scenario(random, {.placement = Placement::even(2, 4), .n = 64, .top_k = 2, .tokens = {20, 20}});
  const int64_t staging_bytes = 20 * 2 * 64 * 2;
  const auto [before, after] = poison_of(scenario, true);
  EXPECT_GE(before, staging_bytes);
  EXPECT_GE(after, staging_bytes);
  const auto [clean_before, clean_after] = poison_of(scenario, false);
  EXPECT_EQ(clean_before, 0);
  EXPECT_LT(clean_after, staging_bytes);
}

}  // namespace
}  // namespace tileoverlap
