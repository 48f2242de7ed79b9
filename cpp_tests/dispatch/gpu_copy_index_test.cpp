// The copy index as kernels make it, against the host's.

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "core/cuda_objects.hpp"
#include "dispatch/index_copies.hpp"
#include "plan/build_pieces.hpp"
#include "support/device_tensor.hpp"
#include "support/random_routing.hpp"
#include "tileoverlap/dispatch/copy_index.hpp"

namespace tileoverlap {
namespace {

using testing::HostTensor;
using testing::Random;

template <class T>
DeviceBytes uploaded(const std::vector<T>& values) {
  DeviceBytes memory(0, values.size() * sizeof(T) + 1);
  cuda_check(cudaMemcpy(memory.data(), values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice), "upload");
  return memory;
}

template <class T>
std::vector<T> downloaded(const std::byte* from, int64_t count) {
  std::vector<T> values(static_cast<size_t>(count));
  cuda_check(cudaMemcpy(values.data(), from, values.size() * sizeof(T), cudaMemcpyDeviceToHost), "download");
  return values;
}

// One owner's ids and the plan that they belong to.
struct Routed {
  Placement placement = Placement::even(1, 1);
  int32_t rank = 0, top_k = 1;
  int64_t tokens = 0;
  HostTensor ids = {};
  std::vector<int32_t> counts = {};  // of all owners
};

Routed random_ids(Random& random) {
  Routed routed{.placement = testing::random_placement(random)};
  const int32_t world = routed.placement.world(), experts = routed.placement.experts();
  routed.rank = random.between32(0, world - 1);
  routed.top_k = random.between32(1, 9);
  routed.tokens = random.chance(10) ? 0 : random.between(1, random.chance(30) ? 2000 : 70);
  routed.ids = HostTensor(random.chance(50) ? DType::kInt64 : DType::kInt32, {routed.tokens, routed.top_k});
  routed.counts.assign(static_cast<size_t>(world) * static_cast<size_t>(experts), 3);
  const auto row = static_cast<size_t>(routed.rank) * static_cast<size_t>(experts);
  for (int32_t expert = 0; expert < experts; ++expert) routed.counts[row + static_cast<size_t>(expert)] = 0;
  for (int64_t copy = 0; copy < routed.ids.elements(); ++copy) {
    const int32_t id = experts == 0 ? -1 : random.between32(-1, experts - 1);
    routed.ids.put(copy, id);
    if (id >= 0) ++routed.counts[row + static_cast<size_t>(id)];
  }
  return routed;
}

struct Made {
  std::vector<int64_t> gather_row, dispatch_row;
  std::vector<int32_t> peer, totals;
  IdReport report;
};

// `ids` may be others than the plan's.
Made make_on_gpu(const Routed& routed, const Plan& plan, const HostTensor& ids, int32_t refused_by = -1) {
  const int32_t world = routed.placement.world(), experts = routed.placement.experts();
  std::vector<Piece> pieces;
  constexpr int64_t kPieceRows = 16;
  build_pieces(*plan, kPieceRows, pieces);
  const auto layout = DevicePlanLayout::make(world, experts, plan->placement.experts_on(plan->rank), plan.bands(),
                                             static_cast<int64_t>(pieces.size()));
  std::vector<int64_t> image(static_cast<size_t>(layout.total) / sizeof(int64_t) + 1);
  auto* bytes = reinterpret_cast<std::byte*>(image.data());
  write_plan(*plan, kPieceRows, layout, bytes);
  layout.at(bytes).head->refused_by = refused_by;
  const DeviceBytes device_plan = uploaded(image), begins = uploaded(routed.placement.expert_begin());
  const testing::DeviceTensor device_ids(ids);
  const int64_t copies = ids.elements();
  const auto index_layout = IndexLayout::make(copies, experts);
  const DeviceBytes memory(0, static_cast<size_t>(index_layout.total));
  const auto at = [&](int64_t offset) { return memory.data() + offset; };
  const IndexTask task{.counted = {.ids = device_ids.data(),
                                   .id_dtype = ids.dtype(),
                                   .id_stride = routed.top_k,
                                   .tokens = routed.tokens,
                                   .top_k = routed.top_k,
                                   .experts = experts,
                                   .chunks = reinterpret_cast<int32_t*>(at(index_layout.chunks)),
                                   .totals = reinterpret_cast<int32_t*>(at(index_layout.totals)),
                                   .report = reinterpret_cast<IdReport*>(at(index_layout.report))},
                       .plan = layout.at(device_plan.data()),
                       .expert_begin = reinterpret_cast<const int32_t*>(begins.data()),
                       .rank = routed.rank,
                       .world = world,
                       .gather_row = reinterpret_cast<int64_t*>(at(index_layout.gather_row)),
                       .peer = reinterpret_cast<int32_t*>(at(index_layout.peer)),
                       .dispatch_row = reinterpret_cast<int64_t*>(at(index_layout.dispatch_row))};
  const Stream stream(0);
  cuda_check(count_copies(task.counted, stream.get()), "count_copies");
  cuda_check(scan_chunks(task.counted, stream.get()), "scan_chunks");
  cuda_check(index_copies(task, stream.get()), "index_copies");
  stream.synchronize();
  return {.gather_row = downloaded<int64_t>(at(index_layout.gather_row), copies),
          .dispatch_row = downloaded<int64_t>(at(index_layout.dispatch_row), copies),
          .peer = downloaded<int32_t>(at(index_layout.peer), copies),
          .totals = downloaded<int32_t>(at(index_layout.totals), experts),
          .report = downloaded<IdReport>(at(index_layout.report), 1)[0]};
}

class GpuCopyIndex : public ::testing::Test {
 protected:
  void SetUp() override { TILEOVERLAP_NEEDS_GPU(); }
  static Plan plan_of(Random& random, const Routed& routed) {
    return make_plan(routed.placement, routed.rank, RouteCounts(routed.placement, routed.counts), 24,
                     testing::random_options(random));
  }
};

TEST_F(GpuCopyIndex, EqualsTheHosts) {
  Random random(81);
  for (int round = 0; round < 300; ++round) {
    const Routed routed = random_ids(random);
    const Plan plan = plan_of(random, routed);
    const Made made = make_on_gpu(routed, plan, routed.ids);
    const CopyIndex expected = make_copy_index(plan, routed.ids.arg());
    ASSERT_EQ(made.gather_row, expected.gather_row) << "round " << round;
    ASSERT_EQ(made.dispatch_row, expected.dispatch_row) << "round " << round;
    ASSERT_EQ(made.peer, expected.peer) << "round " << round;
    ASSERT_EQ(made.report.copy, -1);
    ASSERT_EQ(made.report.expert, -1);
  }
}

TEST_F(GpuCopyIndex, ReportsTheFirstBadIdAndSkipsAllOfThem) {
  Random random(82);
  for (int round = 0; round < 100; ++round) {
    const Routed routed = random_ids(random);
    if (routed.ids.elements() == 0) continue;
    const Plan plan = plan_of(random, routed);
    HostTensor ids = routed.ids.clone();
    const int64_t first = random.between(0, ids.elements() - 1), second = random.between(first, ids.elements() - 1);
    const int64_t value = ids.dtype() == DType::kInt64 ? (int64_t{1} << 32) : routed.placement.experts();
    ids.put(second, -2);
    ids.put(first, value);
    const Made made = make_on_gpu(routed, plan, ids);
    ASSERT_EQ(made.report.copy, first);
    ASSERT_EQ(made.report.value, value);
    for (const int64_t bad : {first, second}) {
      ASSERT_EQ(made.gather_row[static_cast<size_t>(bad)], -1);
      ASSERT_EQ(made.dispatch_row[static_cast<size_t>(bad)], -1);
    }
  }
}

TEST_F(GpuCopyIndex, ReportsIdsOfAnotherPlanAndStaysInsideThePlan) {
  Random random(83);
  for (int round = 0; round < 100; ++round) {
    const Routed routed = random_ids(random);
    if (routed.ids.elements() == 0 || routed.placement.experts() < 2) continue;
    const Plan plan = plan_of(random, routed);
    HostTensor ids = routed.ids.clone();
    for (int64_t copy = 0; copy < ids.elements(); ++copy) ids.put(copy, 0);  // all to the first expert
    const Made made = make_on_gpu(routed, plan, ids);
    const int64_t planned = plan->staging_row[1] - plan->staging_row[0];
    if (planned == ids.elements()) continue;
    ASSERT_EQ(made.report.expert, 0);
    ASSERT_EQ(made.report.copies, ids.elements());
    ASSERT_EQ(made.report.planned, planned);
    for (int64_t copy = 0; copy < ids.elements(); ++copy) {
      ASSERT_EQ(made.gather_row[static_cast<size_t>(copy)] >= 0, copy < planned) << "copy " << copy;
    }
  }
}

TEST_F(GpuCopyIndex, OfARefusedCallHoldsNoCopy) {
  Random random(84);
  const Routed routed = random_ids(random);
  const Made made = make_on_gpu(routed, plan_of(random, routed), routed.ids, 0);
  EXPECT_EQ(made.gather_row, std::vector<int64_t>(made.gather_row.size(), -1));
  EXPECT_EQ(made.peer, std::vector<int32_t>(made.peer.size(), -1));
}

}  // namespace
}  // namespace tileoverlap
