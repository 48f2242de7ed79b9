// The device planner, run on the host thread by thread: the same image as a host plan's, whatever the number of
// threads and whichever of them comes first between two barriers.

#include "plan/device_planner.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <ostream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "plan/build_pieces.hpp"
#include "support/messages.hpp"
#include "support/random_routing.hpp"
#include "tileoverlap/core/error.hpp"

namespace tileoverlap {

bool operator==(const ScheduledBand& a, const ScheduledBand& b) { return std::memcmp(&a, &b, sizeof a) == 0; }
bool operator==(const StoredRun& a, const StoredRun& b) { return std::memcmp(&a, &b, sizeof a) == 0; }
bool operator==(const Piece& a, const Piece& b) { return std::memcmp(&a, &b, sizeof a) == 0; }
void PrintTo(const ScheduledBand& band, std::ostream* out) {
  *out << "(" << band.band << ", " << band.expert << ", " << band.group_begin << ", " << band.group_size << ")";
}
void PrintTo(const Piece& piece, std::ostream* out) {
  *out << "(" << piece.first_band << ", " << piece.last_band << ", " << piece.peer << ", " << piece.segment << ", "
       << piece.expert << ", " << piece.row_count << ", " << piece.row_begin << ", " << piece.remote_row << ")";
}
void PrintTo(const StoredRun& run, std::ostream* out) {
  *out << "(" << run.row_begin << ", " << run.row_count << ", " << run.owner << ", " << run.remote_row << ")";
}

namespace {

using testing::Says;

// Takes each step thread by thread, in an order that differs from step to step.
class HostGroup {
 public:
  explicit HostGroup(int32_t threads) : threads_(threads) {}

  template <class Step>
  void each(Step step) {
    ++steps_;
    for (int32_t i = 0; i < threads_; ++i) {
      const int32_t turned = (i + 5 * steps_) % threads_;
      step(steps_ % 2 == 0 ? turned : threads_ - 1 - turned, threads_);
    }
  }

 private:
  int32_t threads_;
  int32_t steps_ = 0;
};

// A DevicePlan in host memory, filled with a byte that no right answer consists of, and as many such bytes behind it.
class Image {
 public:
  explicit Image(const DevicePlanLayout& layout)
      : layout_(layout), words_(static_cast<size_t>(layout.total / kWord + kGuard), 0x5a5a5a5a5a5a5a5a) {}

  std::byte* data() { return reinterpret_cast<std::byte*>(words_.data()); }
  DevicePlan plan() { return layout_.at(data()); }
  const PlanHead& head() { return *plan().head; }
  std::vector<ScheduledBand> order() { return {plan().order, plan().order + head().bands}; }
  std::vector<StoredRun> runs() {
    const int64_t bytes = layout_.order - layout_.runs;  // with what aligns the order
    return {plan().runs, plan().runs + bytes / static_cast<int64_t>(sizeof(StoredRun))};
  }
  std::vector<Piece> pieces() { return {plan().pieces, plan().pieces + head().pieces}; }
  bool untouched(int64_t begin, int64_t end) const {
    const auto* bytes = reinterpret_cast<const unsigned char*>(words_.data());
    for (int64_t i = begin; i < end; ++i) {
      if (bytes[i] != 0x5a) return false;
    }
    return true;
  }
  // Nothing was written behind what the head says.
  bool only_what_is_needed() {
    const int64_t order_end = layout_.order + head().bands * static_cast<int64_t>(sizeof(ScheduledBand));
    const int64_t pieces_end = layout_.pieces + head().pieces * static_cast<int64_t>(sizeof(Piece));
    return untouched(order_end, layout_.pieces) && untouched(pieces_end, static_cast<int64_t>(words_.size()) * kWord);
  }

 private:
  static constexpr int64_t kWord = sizeof(uint64_t), kGuard = 64;
  DevicePlanLayout layout_;
  std::vector<uint64_t> words_;
};

struct Call {
  const Placement& placement;
  const RouteCounts& counts;
  PlanOptions options;
  int64_t n = 24, piece_rows = 4;
  int32_t refused_by = -1;
};

DevicePlanLayout layout_of(const Call& call, int32_t rank, int64_t bands, int64_t pieces) {
  return DevicePlanLayout::make(call.placement.world(), call.placement.experts(), call.placement.experts_on(rank),
                                bands, pieces);
}

PlannerResult plan_on(int32_t threads, const Call& call, int32_t rank, const DevicePlanLayout& layout, Image& image) {
  const Placement& placement = call.placement;
  // Rows of the matrix lie apart, as in votes.
  const int64_t stride = placement.experts() + 3;
  std::vector<int32_t> counts(static_cast<size_t>(stride * placement.world()), -7);
  for (int32_t owner = 0; owner < placement.world(); ++owner) {
    const auto row = call.counts.row(owner);
    std::copy(row.begin(), row.end(), counts.begin() + owner * stride);
  }
  const auto scratch_layout = PlannerLayout::make(placement.world(), placement.experts(), placement.experts_on(rank));
  std::vector<uint64_t> scratch(static_cast<size_t>(scratch_layout.total) / sizeof(uint64_t) + 8, 0x5a5a5a5a5a5a5a5a);
  const PlannerInput input{.rank = rank,
                           .world = placement.world(),
                           .experts = placement.experts(),
                           .n = static_cast<int32_t>(call.n),
                           .options = call.options,
                           .expert_begin = placement.expert_begin().data(),
                           .counts = counts.data(),
                           .counts_stride = stride,
                           .piece_rows = call.piece_rows,
                           .max_bands = layout.max_bands,
                           .max_pieces = layout.max_pieces,
                           .refused_by = call.refused_by};
  HostGroup group(threads);
  const PlannerResult result =
      plan_call(group, input, scratch_layout.at(reinterpret_cast<std::byte*>(scratch.data())), image.plan());
  for (size_t i = static_cast<size_t>(scratch_layout.total) / sizeof(uint64_t) + 1; i < scratch.size(); ++i) {
    EXPECT_EQ(scratch[i], 0x5a5a5a5a5a5a5a5a) << "behind the scratch";
  }
  return result;
}

using Rows = std::vector<int64_t>;
std::tuple<Rows, Rows, Rows, Rows> rows_of(const Call& call, Image& image) {
  const DevicePlan plan = image.plan();
  const int64_t experts = call.placement.experts(), world = call.placement.world();
  return {Rows(plan.staging_row, plan.staging_row + experts + 1), Rows(plan.dispatch_row, plan.dispatch_row + experts),
          Rows(plan.returned_rows, plan.returned_rows + world),
          Rows(plan.dispatched_rows, plan.dispatched_rows + world)};
}

int64_t pieces_of(const Plan& plan, int64_t piece_rows) {
  std::vector<Piece> pieces;
  build_pieces(*plan, piece_rows, pieces);
  return static_cast<int64_t>(pieces.size());
}

// Plans `rank`'s part on `threads` threads and on the host, with room for just what is needed, and compares.
void expect_same(int32_t threads, const Call& call, int32_t rank) {
  const Plan plan = make_plan(call.placement, rank, call.counts, call.n, call.options);
  const int64_t bands = plan.bands(), pieces = pieces_of(plan, call.piece_rows);
  const DevicePlanLayout layout = layout_of(call, rank, bands, pieces);
  Image expected(layout), planned(layout);
  write_plan(*plan, call.piece_rows, layout, expected.data());
  const PlannerResult result = plan_on(threads, call, rank, layout, planned);
  ASSERT_EQ(result.bands, bands);
  ASSERT_EQ(result.pieces, pieces);
  ASSERT_FALSE(result.too_large);
  ASSERT_EQ(planned.head().bands, expected.head().bands);
  ASSERT_EQ(planned.head().refused_by, -1);
  ASSERT_EQ(planned.head().pieces, expected.head().pieces);
  ASSERT_EQ(planned.head().staging_rows, expected.head().staging_rows);
  ASSERT_EQ(planned.head().fingerprint, expected.head().fingerprint);
  ASSERT_EQ(planned.order(), expected.order());
  ASSERT_EQ(planned.pieces(), expected.pieces());
  ASSERT_EQ(rows_of(call, planned), rows_of(call, expected));
  ASSERT_EQ(planned.runs(), expected.runs());
  ASSERT_TRUE(planned.only_what_is_needed());
  ASSERT_TRUE(expected.only_what_is_needed());
}

// Three ranks, experts {0, 1} on rank 0, {2} on rank 1, {3} on rank 2; tile_m = 4 (see row_layout_test.cpp).
const Placement kPlacement = Placement::from_begins({0, 2, 3, 4});
const RouteCounts kCounts(kPlacement, {3, 1, 2, 4, 5, 0, 1, 0, 2, 6, 3, 1});

TEST(DevicePlanner, WritesTheHandCheckedPlan) {
  const Call call{.placement = kPlacement,
                  .counts = kCounts,
                  .options = {.tile_m = 4, .tile_n = 4, .bands_per_segment = 2, .group = 2},
                  .n = 6,
                  .piece_rows = 3};
  for (const int32_t threads : {1, 3, 64}) {
    const DevicePlanLayout layout = layout_of(call, 0, 10, 10);
    Image image(layout);
    const PlannerResult result = plan_on(threads, call, 0, layout, image);
    EXPECT_EQ(result.bands, 5);
    EXPECT_EQ(result.pieces, 7);
    EXPECT_FALSE(result.too_large);
    EXPECT_EQ(image.head().staging_rows, 10);
    EXPECT_EQ(image.head().refused_by, -1);
    // Expert 0 has bands 0..1 with remote rows and band 2 without, expert 1 bands 3..4, both with remote rows.
    EXPECT_EQ(image.order(),
              (std::vector<ScheduledBand>{{0, 0, 0, 1}, {1, 0, 1, 1}, {3, 1, 2, 2}, {4, 1, 2, 2}, {2, 0, 4, 1}}));
    const std::vector<StoredRun> runs = image.runs();
    EXPECT_EQ(std::vector(runs.begin(), runs.begin() + 6),
              (std::vector<StoredRun>{
                  {0, 5, 1, 0}, {5, 2, 2, 0}, {7, 3, 0, 0}, {12, 0, 1, 5}, {12, 6, 2, 2}, {18, 1, 0, 3}}));
    // Owner 1 sends rows 0..4 to expert 0: the first segment of all is one band; owner 2 rows 5..6; then owner 2 rows
    // 12..17 to expert 1: the last segment of all is one band.
    EXPECT_EQ(image.pieces(), (std::vector<Piece>{{0, 0, 1, 0, 0, 3, 0, 0},
                                                  {0, 0, 1, 0, 0, 1, 3, 3},
                                                  {1, 1, 1, 1, 0, 1, 4, 4},
                                                  {1, 1, 2, 2, 0, 2, 5, 0},
                                                  {3, 3, 2, 3, 1, 3, 12, 2},
                                                  {3, 3, 2, 3, 1, 1, 15, 5},
                                                  {4, 4, 2, 4, 1, 2, 16, 6}}));
    EXPECT_EQ(rows_of(call, image), std::tuple(Rows{0, 3, 4, 6, 10}, Rows{7, 18, 3, 0}, Rows{0, 2, 4}, Rows{4, 5, 8}));
  }
}

TEST(DevicePlanner, GivesTheHostsPlanForRandomRoutings) {
  testing::Random random(71);
  for (int round = 0; round < 10'000; ++round) {
    const Placement placement = testing::random_placement(random, 16);
    const RouteCounts counts = testing::random_counts(random, placement);
    PlanOptions options = testing::random_options(random);
    const Call call{.placement = placement,
                    .counts = counts,
                    .options = options,
                    .n = random.between(1, 100),
                    .piece_rows = random.between(1, random.chance(80) ? options.tile_m : 5 * options.tile_m)};
    constexpr int32_t kThreads[] = {1, 2, 7, 32, 96, 128, 256};
    const int32_t threads = kThreads[random.between(0, 6)];
    for (int32_t rank = 0; rank < placement.world(); ++rank) {
      expect_same(threads, call, rank);
      if (HasFatalFailure()) FAIL() << "round " << round << ", rank " << rank << ", " << threads << " threads";
    }
  }
}

TEST(DevicePlanner, GivesTheHostsPlanForManyExpertsAndOneHotOne) {
  testing::Random random(72);
  for (const auto& [world, experts] : {std::pair{8, 256}, {64, 256}, {3, 500}, {1, 40}, {300, 7}}) {
    const Placement placement = Placement::even(world, experts);
    std::vector<int32_t> values(static_cast<size_t>(world) * static_cast<size_t>(experts));
    for (int32_t& value : values) value = random.chance(2) ? 100'000 : random.between32(0, 300);
    const RouteCounts counts(placement, values);
    for (const Layout layout : {Layout::kCompact, Layout::kOwnerAligned}) {
      const Call call{
          .placement = placement, .counts = counts, .options = {.layout = layout}, .n = 7168, .piece_rows = 73};
      for (const int32_t threads : {31, 256}) {
        for (const int32_t rank : {0, world - 1}) expect_same(threads, call, rank);
      }
    }
  }
}

TEST(DevicePlanner, CountsBeyond32BitsInRows) {
  const Placement placement = Placement::from_begins({0, 2, 2, 3});
  const int32_t most = 2'000'000'000;
  const RouteCounts counts(placement, {most, most, most, most, 5, most, 0, most, most});
  for (const Layout layout : {Layout::kCompact, Layout::kOwnerAligned}) {
    const Call call{.placement = placement,
                    .counts = counts,
                    .options = {.tile_m = 1 << 20, .layout = layout, .bands_per_segment = 3},
                    .piece_rows = 1 << 20};
    for (int32_t rank = 0; rank < 3; ++rank) expect_same(32, call, rank);
  }
}

TEST(DevicePlanner, LeavesARefusedCallNothingToDo) {
  Call call{.placement = kPlacement, .counts = kCounts, .options = {.tile_m = 4}, .refused_by = 2};
  const DevicePlanLayout layout = layout_of(call, 0, 10, 10);
  for (const int32_t threads : {1, 3, 64}) {
    Image image(layout);
    const PlannerResult result = plan_on(threads, call, 0, layout, image);
    EXPECT_EQ(result.bands, 0);
    EXPECT_EQ(result.pieces, 0);
    EXPECT_FALSE(result.too_large);
    EXPECT_EQ(image.head().bands, 0);
    EXPECT_EQ(image.head().refused_by, 2);
    EXPECT_EQ(image.head().pieces, 0);
    EXPECT_EQ(image.head().staging_rows, 0);
    EXPECT_EQ(image.head().fingerprint, 0u);
    EXPECT_EQ(rows_of(call, image), std::tuple(Rows(5, 0), Rows(4, 0), Rows(3, 0), Rows(3, 0)));
    EXPECT_TRUE(image.only_what_is_needed());
  }
}

TEST(DevicePlanner, WritesNoBandAndNoPieceWhereThereIsNoRoomForAll) {
  const Call call{.placement = kPlacement, .counts = kCounts, .options = {.tile_m = 4}, .n = 6, .piece_rows = 3};
  const Plan plan = make_plan(kPlacement, 0, kCounts, call.n, call.options);
  const int64_t bands = plan.bands(), pieces = pieces_of(plan, call.piece_rows);
  for (const auto& [band_room, piece_room] :
       {std::pair{bands - 1, pieces}, {bands, pieces - 1}, {int64_t{0}, pieces}}) {
    const DevicePlanLayout layout = layout_of(call, 0, band_room, piece_room);
    Image image(layout);
    const PlannerResult result = plan_on(7, call, 0, layout, image);
    EXPECT_TRUE(result.too_large);
    EXPECT_EQ(result.bands, bands);
    EXPECT_EQ(result.pieces, pieces);
    EXPECT_EQ(image.head().bands, 0);
    EXPECT_EQ(image.head().pieces, 0);
    EXPECT_EQ(image.head().fingerprint, plan->fingerprint);
    EXPECT_EQ(std::get<0>(rows_of(call, image)), plan->staging_row);
    EXPECT_TRUE(image.untouched(layout.pieces, layout.total));
  }
}

TEST(WritePlan, CutsSegmentsIntoPiecesThatWaitForTheirOwnBandsAlone) {
  // Owner 1 sends 21 rows: segments of 1, 3 and 1 bands and a last one (see segments_test.cpp).
  const Placement placement = Placement::from_begins({0, 1, 1});
  const RouteCounts counts(placement, {2, 21});
  const Plan plan = make_plan(placement, 0, counts, 8, {.tile_m = 4, .bands_per_segment = 3});
  std::vector<Piece> pieces(3);
  build_pieces(*plan, 5, pieces);
  EXPECT_EQ(pieces, (std::vector<Piece>{{0, 0, 1, 0, 0, 4, 0, 0},
                                        {1, 2, 1, 1, 0, 5, 4, 4},
                                        {2, 3, 1, 1, 0, 5, 9, 9},
                                        {3, 3, 1, 1, 0, 2, 14, 14},
                                        {4, 4, 1, 2, 0, 4, 16, 16},
                                        {5, 5, 1, 3, 0, 1, 20, 20}}));
}

TEST(WritePlan, RefusesAPlanThatDoesNotFitAndWritesNothing) {
  const Call call{.placement = kPlacement, .counts = kCounts, .options = {.tile_m = 4}};
  const Plan plan = make_plan(kPlacement, 0, kCounts, call.n, call.options);
  for (const auto& [bands, pieces] : {std::pair{4, 5}, {5, 4}}) {
    const DevicePlanLayout layout = layout_of(call, 0, bands, pieces);
    Image image(layout);
    EXPECT_THAT(testing::message_of<CapacityError>([&] { write_plan(*plan, 4, layout, image.data()); }),
                Says("rank 0", "has 5 bands", "5 pieces to send", "room for " + std::to_string(bands) + " bands",
                     std::to_string(pieces) + " pieces"));
    EXPECT_TRUE(image.untouched(0, layout.total));
  }
}

TEST(MaxPieces, IsNeverPassed) {
  testing::Random random(73);
  for (int round = 0; round < 300; ++round) {
    const Placement placement = testing::random_placement(random);
    const RouteCounts counts = testing::random_counts(random, placement);
    const PlanOptions options = testing::random_options(random);
    int64_t most = 0;
    for (int32_t owner = 0; owner < placement.world(); ++owner) most = std::max(most, counts.copies_of(owner));
    const Capacity capacity{.max_tokens = most, .top_k = 1};
    for (const Plan& plan : testing::make_plans(placement, counts, 24, options)) {
      for (const int64_t rows : {1, 3, 16}) {
        ASSERT_LE(pieces_of(plan, rows), max_pieces(placement, plan->rank, capacity, options, rows)) << plan.repr();
      }
    }
  }
}

TEST(MaxPieces, RefusesPiecesWithoutRows) {
  EXPECT_THAT(testing::message_of<InvalidArgument>([] { max_pieces(kPlacement, 0, {.top_k = 1}, {}, 0); }),
              Says("piece_rows", "got 0"));
}

}  // namespace
}  // namespace tileoverlap
