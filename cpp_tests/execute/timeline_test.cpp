// What a recorded timeline says of a call.

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <vector>

#include "support/compare.hpp"
#include "support/json.hpp"
#include "support/layer_world.hpp"
#include "support/session_world.hpp"

namespace tileoverlap {
namespace {

using testing::Call;
using testing::make_scenario;
using testing::Random;
using testing::Scenario;
using testing::SessionWorld;
using testing::WorldSetup;

class RecordedRun : public ::testing::TestWithParam<RunMode> {
 protected:
  RecordedRun() {
    Random random(1);
    scenario_ =
        make_scenario(random, {.placement = Placement::even(2, 4), .k = 64, .n = 64, .top_k = 2, .tokens = {40, 33}});
    WorldSetup setup{.plan = {.tile_m = 4, .tile_n = 16, .bands_per_segment = 2}};
    setup.record_timeline = true;
    // The delays stretch the GEMM to tens of milliseconds, on a machine of any speed.
    setup.cpu = {{.producer_threads = 2, .consumer_threads = 2, .faults = {.max_delay_us = 1000}}};
    world_ = std::make_unique<SessionWorld>(scenario_, setup);
    call_ = world_->make_call(scenario_);
  }

  std::vector<Timeline> record() {
    world_->start_all(scenario_, call_, GetParam());
    world_->synchronize_all();
    return {world_->session(0).timeline(), world_->session(1).timeline()};
  }

  Scenario scenario_;
  std::unique_ptr<SessionWorld> world_;
  Call call_;
};
INSTANTIATE_TEST_SUITE_P(Modes, RecordedRun, ::testing::Values(RunMode::kOverlapped, RunMode::kSerial),
                         [](const auto& test) { return std::string(name(test.param)); });

int64_t count(const Timeline& timeline, Span span) {
  return std::count_if(timeline.events.begin(), timeline.events.end(),
                       [&](const TimelineEvent& e) { return e.span == span; });
}

TEST_P(RecordedRun, HoldsEveryTileAndEverySegmentOfTheLastCallOnly) {
  record();
  const auto timelines = record();
  for (size_t rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(count(timelines[rank], Span::kTile), call_.plans[rank].tiles());
    EXPECT_EQ(count(timelines[rank], Span::kCopy), static_cast<int64_t>(call_.plans[rank]->segments.size()));
    EXPECT_EQ(count(timelines[rank], Span::kReduce), 1);
    std::multiset<int32_t> segments;
    for (const TimelineEvent& event : timelines[rank].events) {
      EXPECT_EQ(event.rank, static_cast<int32_t>(rank));
      EXPECT_LE(event.begin_ns, event.end_ns);
      ASSERT_LT(static_cast<size_t>(event.worker), timelines[rank].worker_names.size());
      if (event.span == Span::kCopy) {
        segments.insert(event.item);
        EXPECT_EQ(event.peer, call_.plans[rank]->segments.at(static_cast<size_t>(event.item)).peer);
      }
    }
    EXPECT_EQ(std::set<int32_t>(segments.begin(), segments.end()).size(), segments.size());
  }
}

TEST_P(RecordedRun, CopiesASegmentOnlyWhenItsBandsAreDone) {
  const auto timelines = record();
  for (size_t rank = 0; rank < 2; ++rank) {
    std::map<int32_t, int64_t> band_done;
    for (const TimelineEvent& event : timelines[rank].events) {
      if (event.span == Span::kTile) band_done[event.item] = std::max(band_done[event.item], event.end_ns);
    }
    for (const TimelineEvent& event : timelines[rank].events) {
      if (event.span != Span::kCopy) continue;
      const Segment& segment = call_.plans[rank]->segments[static_cast<size_t>(event.item)];
      for (int32_t band = segment.first_band; band <= segment.last_band; ++band) {
        EXPECT_GE(event.begin_ns, band_done.at(band)) << "segment " << event.item;
      }
    }
  }
}

TEST_P(RecordedRun, NeverHasAWorkerDoTwoThingsAtOnce) {
  for (const Timeline& timeline : record()) {
    std::map<int32_t, std::vector<TimelineEvent>> by_worker;
    for (const TimelineEvent& event : timeline.events) by_worker[event.worker].push_back(event);
    for (auto& [worker, events] : by_worker) {
      std::sort(events.begin(), events.end(), [](const auto& a, const auto& b) { return a.begin_ns < b.begin_ns; });
      for (size_t i = 1; i < events.size(); ++i) EXPECT_GE(events[i].begin_ns, events[i - 1].end_ns) << worker;
    }
  }
}

TEST_P(RecordedRun, SendsBeforeTheLastTileInOverlappedModeOnly) {
  for (const Timeline& timeline : record()) {
    int64_t first_copy = std::numeric_limits<int64_t>::max();
    for (const TimelineEvent& event : timeline.events) {
      if (event.span == Span::kCopy) first_copy = std::min(first_copy, event.begin_ns);
    }
    const int64_t gemm_end = overlap_times({&timeline, 1}).gemm_end_ns;
    if (GetParam() == RunMode::kSerial) {
      EXPECT_GE(first_copy, gemm_end);
    } else {
      EXPECT_LT(first_copy, gemm_end);
    }
  }
}

TEST_P(RecordedRun, OpensInAViewer) {
  const auto timelines = record();
  const auto trace = testing::parse_json(to_chrome_trace(timelines));
  std::set<std::pair<double, std::string>> named, busy;  // rank and worker
  size_t complete = 0;
  for (const auto& event : trace["traceEvents"].array) {
    if (event["name"].text == "thread_name") named.emplace(event["pid"].number, event["args"]["name"].text);
    complete += event["ph"].text == "X" ? 1 : 0;
  }
  for (const Timeline& timeline : timelines) {
    for (const TimelineEvent& event : timeline.events) {
      busy.emplace(event.rank, timeline.worker_names.at(static_cast<size_t>(event.worker)));
    }
    EXPECT_EQ(timeline.worker_names,
              (std::vector<std::string>{"driver", "producer 0", "producer 1", "consumer 0", "consumer 1"}));
  }
  EXPECT_EQ(complete, timelines[0].events.size() + timelines[1].events.size());
  for (const auto& worker : busy) EXPECT_EQ(named.count(worker), 1u) << worker.first << ' ' << worker.second;
}

TEST(Overlap, SendsTheFirstSegmentWhileTheGemmIsStillRunning) {
  // A GEMM of tens of milliseconds in 64 bands: the first band is on its way long before the last one is done.
  Random random(2);
  Scenario scenario =
      make_scenario(random, {.placement = Placement::even(2, 2), .k = 512, .n = 512, .top_k = 1, .tokens = {256, 256}});
  for (int32_t rank = 0; rank < 2; ++rank) {
    for (int64_t i = 0; i < 256; ++i) scenario.ids[static_cast<size_t>(rank)].put(i, 1 - rank);
  }
  WorldSetup setup{.plan = {.tile_m = 4, .tile_n = 64}};
  setup.record_timeline = true;
  SessionWorld world(scenario, setup);
  const Call call = world.make_call(scenario);
  world.start_all(scenario, call);
  world.synchronize_all();
  for (int32_t rank = 0; rank < 2; ++rank) {
    const Timeline timeline = world.session(rank).timeline();
    int64_t first_landed = std::numeric_limits<int64_t>::max();
    for (const TimelineEvent& event : timeline.events) {
      if (event.span == Span::kCopy) first_landed = std::min(first_landed, event.end_ns);
    }
    EXPECT_LT(first_landed, overlap_times({&timeline, 1}).gemm_end_ns) << "rank " << rank;
  }
}

TEST(LayerTimeline, ShowsEveryStage) {
  Random random(3);
  const auto inputs = testing::make_layer_inputs(
      random, {.placement = Placement::even(2, 4), .expert = ExpertKind::kGelu, .top_k = 2, .tokens = {9, 8}});
  WorldSetup setup;
  setup.record_timeline = true;
  testing::LayerWorld world(inputs, setup);
  world.run(inputs);
  for (int32_t rank = 0; rank < 2; ++rank) {
    const Timeline timeline = world.layer(rank).timeline();
    for (const Span span : {Span::kCounts, Span::kPlan, Span::kDispatch, Span::kDispatchWait, Span::kFirstProjection,
                            Span::kTile, Span::kCopy, Span::kArrivalWait, Span::kReduce}) {
      EXPECT_GT(count(timeline, span), 0) << name(span);
    }
  }
}

TEST(Timelines, AreEmptyWhereNobodyAskedForThem) {
  Random random(4);
  const Scenario scenario = make_scenario(random, {.placement = Placement::even(2, 4), .top_k = 2, .tokens = {9, 8}});
  SessionWorld world(scenario, {});
  world.run(scenario);
  EXPECT_TRUE(world.session(0).timeline().events.empty());
}

}  // namespace
}  // namespace tileoverlap
