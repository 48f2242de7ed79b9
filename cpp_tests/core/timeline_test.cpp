// The trace that a viewer opens, and the times read off a timeline.

#include "tileoverlap/core/timeline.hpp"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <utility>

#include "support/json.hpp"

namespace tileoverlap {
namespace {

using testing::Json;
using testing::parse_json;

// Two ranks of one process: a driver that waits, a producer with two tiles, a consumer with one copy.
std::vector<Timeline> two_ranks() {
  Timeline first;
  first.worker_names = {"driver", "producer 0", "consumer 0"};
  first.events = {
      {.span = Span::kTile, .rank = 0, .worker = 1, .item = 3, .begin_ns = 5'000, .end_ns = 7'500},
      {.span = Span::kTile, .rank = 0, .worker = 1, .item = 4, .begin_ns = 7'500, .end_ns = 9'001},
      {.span = Span::kCopy, .rank = 0, .worker = 2, .item = 0, .peer = 1, .begin_ns = 7'600, .end_ns = 8'123},
  };
  Timeline second;
  second.worker_names = {"driver"};
  second.events = {{.span = Span::kArrivalWait, .rank = 1, .worker = 0, .peer = 0, .begin_ns = 4'000, .end_ns = 9'500}};
  return {first, second};
}

const Json* find_event(const Json& trace, const std::string& name, double pid, double tid) {
  for (const Json& event : trace["traceEvents"].array) {
    if (event["name"].text == name && event["pid"].number == pid && event["tid"].number == tid) return &event;
  }
  return nullptr;
}

TEST(ChromeTrace, HoldsOneCompleteEventPerSpanInMicrosecondsFromTheFirst) {
  const Json trace = parse_json(to_chrome_trace(two_ranks()));
  int complete = 0;
  for (const Json& event : trace["traceEvents"].array) complete += event["ph"].text == "X" ? 1 : 0;
  EXPECT_EQ(complete, 4);
  const Json* copy = find_event(trace, name(Span::kCopy), 0, 2);
  ASSERT_NE(copy, nullptr);
  EXPECT_EQ((*copy)["ts"].text, "3.600");  // the first event of all ranks begins at 4 us
  EXPECT_EQ((*copy)["dur"].text, "0.523");
  EXPECT_EQ((*copy)["args"]["segment"].number, 0);
  EXPECT_EQ((*copy)["args"]["peer"].number, 1);
  const Json* tile = find_event(trace, name(Span::kTile), 0, 1);
  ASSERT_NE(tile, nullptr);
  EXPECT_EQ((*tile)["args"]["band"].number, 3);
  EXPECT_FALSE((*tile)["args"].has("peer"));
}

TEST(ChromeTrace, NamesEachRankAndEachWorkerOnce) {
  const Json trace = parse_json(to_chrome_trace(two_ranks()));
  std::multiset<std::pair<std::string, std::string>> names;
  for (const Json& event : trace["traceEvents"].array) {
    if (event["ph"].text == "M") names.emplace(event["name"].text, event["args"]["name"].text);
  }
  const std::multiset<std::pair<std::string, std::string>> expected = {{"process_name", "rank 0"},
                                                                       {"process_name", "rank 1"},
                                                                       {"thread_name", "producer 0"},
                                                                       {"thread_name", "consumer 0"},
                                                                       {"thread_name", "driver"}};
  EXPECT_EQ(names, expected);
}

TEST(ChromeTrace, OfNothingIsStillATrace) {
  EXPECT_TRUE(parse_json(to_chrome_trace({}))["traceEvents"].array.empty());
  const std::vector<Timeline> idle(3);
  EXPECT_TRUE(parse_json(to_chrome_trace(idle))["traceEvents"].array.empty());
}

TEST(ChromeTrace, EscapesTheNamesOfWorkers) {
  auto timelines = two_ranks();
  timelines[0].worker_names[1] = "a \"quoted\" \\ name\n";
  const Json trace = parse_json(to_chrome_trace(timelines));
  const Json* event = find_event(trace, "thread_name", 0, 1);
  ASSERT_NE(event, nullptr);
  EXPECT_EQ((*event)["args"]["name"].text, "a \"quoted\" \\ name\n");
}

TEST(ChromeTrace, AWorkerWithoutANameGetsItsNumber) {
  auto timelines = two_ranks();
  timelines[0].worker_names.clear();
  const Json trace = parse_json(to_chrome_trace(timelines));
  const Json* event = find_event(trace, "thread_name", 0, 2);
  ASSERT_NE(event, nullptr);
  EXPECT_NE((*event)["args"]["name"].text.find('2'), std::string::npos);
}

TEST(ChromeTrace, KeepsNanosecondsOfLateTimes) {
  Timeline timeline;
  timeline.events = {{.span = Span::kTile, .begin_ns = 0, .end_ns = 1},
                     {.span = Span::kTile, .begin_ns = 9'007'199'254'740'993, .end_ns = 9'007'199'254'740'994}};
  const Json trace = parse_json(to_chrome_trace({&timeline, 1}));
  EXPECT_EQ(trace["traceEvents"].array.back()["ts"].text, "9007199254740.993");
}

TEST(SpanNames, AreAllDifferent) {
  std::set<std::string> names;
  for (int32_t span = 0; span <= static_cast<int32_t>(Span::kReduce); ++span) {
    names.insert(name(static_cast<Span>(span)));
  }
  EXPECT_EQ(names.size(), static_cast<size_t>(Span::kReduce) + 1);
}

TEST(OverlapTimes, AreTheLastTileAndTheLastCopyOfAllRanks) {
  const OverlapTimes times = overlap_times(two_ranks());
  EXPECT_EQ(times.first_ns, 5'000);  // waiting is not the operator's work
  EXPECT_EQ(times.gemm_end_ns, 9'001);
  EXPECT_EQ(times.landed_ns, 8'123);
}

TEST(OverlapTimes, AreZeroWhereNothingRan) {
  const OverlapTimes times = overlap_times({});
  EXPECT_EQ(times.first_ns, 0);
  EXPECT_EQ(times.gemm_end_ns, 0);
  EXPECT_EQ(times.landed_ns, 0);
}

}  // namespace
}  // namespace tileoverlap
