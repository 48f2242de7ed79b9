// What a recorded timeline says of a call on a GPU.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "consume/ship_lanes.hpp"
#include "support/compare.hpp"
#include "support/gpu_checks.hpp"
#include "support/gpu_world.hpp"
#include "support/json.hpp"

namespace tileoverlap {
namespace {

using testing::GpuCall;
using testing::GpuSessionWorld;
using testing::GpuSetup;
using testing::make_scenario;
using testing::Random;
using testing::Scenario;

constexpr int32_t kSms = 12, kCommSms = 2;

// Two ranks, 2,048 x 1,024 x 2,048 each in 128 tiles on 10 SMs: the GEMM takes many waves, some hundred microseconds.
class GpuRecordedRun : public ::testing::TestWithParam<RunMode> {
 protected:
  void SetUp() override {
    TILEOVERLAP_NEEDS_GPU();
    Random random(1);
    scenario_ = make_scenario(
        random, {.placement = Placement::even(2, 4), .k = 2048, .n = 1024, .top_k = 1, .tokens = {2048, 2048}});
    for (auto& ids : scenario_.ids) {
      for (int64_t i = 0; i < ids.elements(); ++i) ids.put(i, i % 4);
    }
    GpuSetup setup;
    setup.plan.bands_per_segment = 2;
    setup.record_timeline = true;
    setup.cuda = {{.sms = kSms, .comm_sms = kCommSms}};
    world_ = std::make_unique<GpuSessionWorld>(scenario_, setup);
    call_ = world_->make_call(scenario_);
  }

  // Of the second call: the first one may have waited for anything.
  std::vector<Timeline> record() {
    for (int number = 0; number < 2; ++number) {
      world_->start_all(call_, GetParam());
      world_->synchronize_all();
    }
    return {world_->session(0).timeline(), world_->session(1).timeline()};
  }

  Scenario scenario_;
  std::unique_ptr<GpuSessionWorld> world_;
  GpuCall call_;
};
INSTANTIATE_TEST_SUITE_P(Modes, GpuRecordedRun, ::testing::Values(RunMode::kOverlapped, RunMode::kSerial),
                         [](const auto& test) { return std::string(name(test.param)); });

int64_t count(const Timeline& timeline, Span span) {
  return std::count_if(timeline.events.begin(), timeline.events.end(),
                       [&](const TimelineEvent& e) { return e.span == span; });
}

TEST_P(GpuRecordedRun, HoldsEveryTileOnceAndEverySegmentOfTheLastCallOnly) {
  const auto timelines = record();
  for (size_t rank = 0; rank < 2; ++rank) {
    const Plan& plan = call_.plans[rank];
    EXPECT_EQ(count(timelines[rank], Span::kTile), plan.tiles());
    EXPECT_EQ(count(timelines[rank], Span::kReduce), 1);
    EXPECT_EQ(count(timelines[rank], Span::kArrivalWait), 1);
    EXPECT_EQ(count(timelines[rank], Span::kBandWait), count(timelines[rank], Span::kCopy));
    std::map<int32_t, int32_t> tiles_of_band;
    std::set<int32_t> segments;
    for (const TimelineEvent& event : timelines[rank].events) {
      EXPECT_EQ(event.rank, static_cast<int32_t>(rank));
      EXPECT_GT(event.begin_ns, 0) << name(event.span);
      EXPECT_LE(event.begin_ns, event.end_ns) << name(event.span);
      ASSERT_LT(static_cast<size_t>(event.worker), timelines[rank].worker_names.size());
      if (event.span == Span::kTile) ++tiles_of_band[event.item];
      if (event.span == Span::kCopy) {
        segments.insert(event.item);  // a segment may go in several pieces
        EXPECT_EQ(event.peer, plan->segments.at(static_cast<size_t>(event.item)).peer);
      }
    }
    EXPECT_EQ(tiles_of_band.size(), static_cast<size_t>(plan.bands()));
    for (const auto& [band, tiles] : tiles_of_band) EXPECT_EQ(tiles, plan->tiles_n) << "band " << band;
    EXPECT_EQ(segments.size(), plan->segments.size());
  }
}

TEST_P(GpuRecordedRun, CopiesASegmentOnlyWhenItsBandsAreDone) {
  const auto timelines = record();
  for (size_t rank = 0; rank < 2; ++rank) {
    std::map<int32_t, int64_t> band_done;
    for (const TimelineEvent& event : timelines[rank].events) {
      if (event.span == Span::kTile) band_done[event.item] = std::max(band_done[event.item], event.end_ns);
    }
    for (const TimelineEvent& event : timelines[rank].events) {
      if (event.span != Span::kCopy) continue;
      // A piece needs only some bands of its segment, the first one or more.
      const Segment& segment = call_.plans[rank]->segments[static_cast<size_t>(event.item)];
      int64_t first_done = std::numeric_limits<int64_t>::max();
      for (int32_t band = segment.first_band; band <= segment.last_band; ++band) {
        first_done = std::min(first_done, band_done.at(band));
      }
      // The GPU's timer moves in steps of up to a microsecond, and a tile's stamp is taken beside its flag.
      constexpr int64_t kTimerStep = 2'000;
      EXPECT_GE(event.begin_ns + kTimerStep, first_done) << "segment " << event.item;
    }
  }
}

TEST_P(GpuRecordedRun, NeverHasAWorkerDoTwoThingsAtOnce) {
  for (const Timeline& timeline : record()) {
    std::map<int32_t, std::vector<TimelineEvent>> by_worker;
    for (const TimelineEvent& event : timeline.events) by_worker[event.worker].push_back(event);
    for (auto& [worker, events] : by_worker) {
      if (worker == 0) continue;  // the call itself
      std::sort(events.begin(), events.end(), [](const auto& a, const auto& b) {
        return std::pair{a.begin_ns, a.end_ns} < std::pair{b.begin_ns, b.end_ns};
      });
      for (size_t i = 1; i < events.size(); ++i) {
        EXPECT_GE(events[i].begin_ns, events[i - 1].end_ns) << timeline.worker_names[static_cast<size_t>(worker)];
      }
    }
  }
}

int64_t first_copy_end(const Timeline& timeline) {
  int64_t first = std::numeric_limits<int64_t>::max();
  for (const TimelineEvent& event : timeline.events) {
    if (event.span == Span::kCopy) first = std::min(first, event.end_ns);
  }
  return first;
}

TEST_P(GpuRecordedRun, SendsBeforeTheLastTileInOverlappedModeOnly) {
  // When the kernel that sends begins is up to the GPU: it may be late for the GEMM in one call, but not in each of
  // many.
  constexpr int kCalls = 20;
  std::array<int, 2> early{};
  for (int call = 0; call < kCalls; ++call) {
    const auto timelines = record();
    for (size_t rank = 0; rank < 2; ++rank) {
      const OverlapTimes times = overlap_times({&timelines[rank], 1});
      if (first_copy_end(timelines[rank]) < times.gemm_end_ns) ++early[rank];
      EXPECT_LT(times.first_ns, times.gemm_end_ns);
      EXPECT_LE(times.gemm_end_ns - times.first_ns, 100'000'000);  // 9 GFLOP
      EXPECT_GT(times.landed_ns, times.first_ns);
      EXPECT_LE(times.landed_ns - times.gemm_end_ns, 100'000'000);
    }
  }
  for (const int calls : early) {
    if (GetParam() == RunMode::kSerial) {
      EXPECT_EQ(calls, 0);
    } else {
      EXPECT_GT(calls, 0);
    }
  }
}

TEST_P(GpuRecordedRun, OpensInAViewer) {
  const auto timelines = record();
  const auto trace = testing::parse_json(to_chrome_trace(timelines));
  std::set<std::pair<double, std::string>> named, busy;  // rank and worker
  size_t complete = 0;
  for (const auto& event : trace["traceEvents"].array) {
    if (event["name"].text == "thread_name") named.emplace(event["pid"].number, event["args"]["name"].text);
    complete += event["ph"].text == "X" ? 1 : 0;
  }
  std::vector<std::string> workers{"call"};
  for (int32_t sm = 0; sm < kSms - kCommSms; ++sm) workers.push_back("producer " + std::to_string(sm));
  const size_t producers = workers.size();
  const int32_t lanes = ship_lanes(0) * kCommSms;
  for (int32_t lane = 0; lane < lanes; ++lane) workers.push_back("consumer " + std::to_string(lane));
  for (const Timeline& timeline : timelines) {
    for (const TimelineEvent& event : timeline.events) {
      busy.emplace(event.rank, timeline.worker_names.at(static_cast<size_t>(event.worker)));
    }
    if (GetParam() == RunMode::kOverlapped) {
      EXPECT_EQ(timeline.worker_names, workers);
    } else {
      EXPECT_GE(timeline.worker_names.size(), producers);  // a serial GEMM may use all SMs
    }
  }
  EXPECT_EQ(complete, timelines[0].events.size() + timelines[1].events.size());
  for (const auto& worker : busy) EXPECT_EQ(named.count(worker), 1u) << worker.first << ' ' << worker.second;
}

TEST(GpuLayerTimeline, ShowsTheReturnPathOfAPlanMadeOnTheDevice) {
  TILEOVERLAP_NEEDS_GPU();
  Random random(3);
  const auto inputs = testing::make_layer_inputs(
      random, {.placement = Placement::even(2, 4), .expert = ExpertKind::kGelu, .top_k = 2, .tokens = {90, 80}});
  GpuSetup setup;
  setup.record_timeline = true;
  testing::GpuLayerWorld world(inputs, setup);
  world.run(inputs);
  std::vector<TensorArg> ids;
  for (const auto& tensor : inputs.ids) ids.push_back(tensor.arg());
  const RouteCounts counts = count_routes(inputs.shapes.placement, ids);
  for (int32_t rank = 0; rank < 2; ++rank) {
    const Timeline timeline = world.layer(rank).timeline();
    const Plan plan = make_plan(inputs.shapes.placement, rank, counts, inputs.shapes.hidden, setup.plan);
    EXPECT_EQ(count(timeline, Span::kTile), plan.tiles());
    EXPECT_GE(count(timeline, Span::kCopy), static_cast<int64_t>(plan->segments.size()));
    EXPECT_EQ(count(timeline, Span::kReduce), 1);
  }
}

TEST(GpuTimelines, AreEmptyWhereNobodyAskedForThem) {
  TILEOVERLAP_NEEDS_GPU();
  Random random(4);
  const Scenario scenario = make_scenario(random, {.placement = Placement::even(2, 4), .top_k = 2, .tokens = {9, 8}});
  GpuSessionWorld world(scenario, {});
  world.run(scenario);
  EXPECT_TRUE(world.session(0).timeline().events.empty());
}

TEST(GpuTimelines, RecordingChangesNoBit) {
  TILEOVERLAP_NEEDS_GPU();
  Random random(5);
  const Scenario scenario =
      make_scenario(random, {.placement = Placement::even(3, 6), .k = 72, .n = 264, .top_k = 2, .tokens = {90, 0, 80}});
  GpuSetup recording;
  recording.record_timeline = true;
  EXPECT_TRUE(testing::same_bits(testing::run_on_gpu(scenario, recording), testing::run_on_gpu(scenario, {})));
}

}  // namespace
}  // namespace tileoverlap
