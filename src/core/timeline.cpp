#include "tileoverlap/core/timeline.hpp"

#include <algorithm>
#include <iomanip>
#include <limits>
#include <map>
#include <sstream>

namespace tileoverlap {
namespace {

// Microseconds with nanosecond digits, without going through a double that would lose them.
std::string microseconds(int64_t ns) {
  std::ostringstream out;
  out << ns / 1000 << '.' << std::setw(3) << std::setfill('0') << ns % 1000;
  return out.str();
}

std::string quoted(const std::string& text) {
  std::ostringstream out;
  out << '"';
  for (const char c : text) {
    if (c == '"' || c == '\\') out << '\\';
    if (static_cast<unsigned char>(c) >= 0x20) {
      out << c;
    } else {
      out << "\\u00" << std::hex << std::setw(2) << std::setfill('0') << int{c};
    }
  }
  out << '"';
  return out.str();
}

const char* item_label(Span span) {
  switch (span) {
    case Span::kTile:
      return "band";
    case Span::kBandWait:
    case Span::kCreditWait:
    case Span::kCopy:
      return "segment";
    default:
      return "item";
  }
}

class TraceWriter {
 public:
  explicit TraceWriter(int64_t origin_ns) : origin_ns_(origin_ns) {
    out_ << "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[";
  }

  void metadata(const char* what, int32_t rank, int32_t worker, const std::string& value) {
    next() << "{\"ph\":\"M\",\"name\":\"" << what << "\",\"pid\":" << rank << ",\"tid\":" << worker
           << ",\"args\":{\"name\":" << quoted(value) << "}}";
  }

  void event(const TimelineEvent& event) {
    next() << "{\"ph\":\"X\",\"name\":\"" << name(event.span) << "\",\"pid\":" << event.rank
           << ",\"tid\":" << event.worker << ",\"ts\":" << microseconds(event.begin_ns - origin_ns_)
           << ",\"dur\":" << microseconds(event.end_ns - event.begin_ns) << ",\"args\":{";
    if (event.item >= 0) out_ << '"' << item_label(event.span) << "\":" << event.item;
    if (event.peer >= 0) out_ << (event.item >= 0 ? "," : "") << "\"peer\":" << event.peer;
    out_ << "}}";
  }

  std::string finish() {
    out_ << "\n]}\n";
    return out_.str();
  }

 private:
  std::ostream& next() {
    out_ << (first_ ? "\n" : ",\n");
    first_ = false;
    return out_;
  }

  std::ostringstream out_;
  int64_t origin_ns_;
  bool first_ = true;
};

}  // namespace

const char* name(Span span) {
  switch (span) {
    case Span::kCounts:
      return "routing: gather counts";
    case Span::kPlan:
      return "plan";
    case Span::kDispatch:
      return "dispatch: send";
    case Span::kDispatchWait:
      return "dispatch: wait";
    case Span::kFirstProjection:
      return "produce: first projection";
    case Span::kTile:
      return "produce: tile";
    case Span::kBandWait:
      return "consume: wait for band";
    case Span::kCreditWait:
      return "consume: wait for credit";
    case Span::kCopy:
      return "consume: copy";
    case Span::kArrivalWait:
      return "reduce: wait";
    case Span::kReduce:
      return "reduce";
  }
  return "?";
}

std::string to_chrome_trace(std::span<const Timeline> timelines) {
  int64_t origin = std::numeric_limits<int64_t>::max();
  std::map<std::pair<int32_t, int32_t>, std::string> rows;
  for (const Timeline& timeline : timelines) {
    for (const TimelineEvent& event : timeline.events) {
      origin = std::min(origin, event.begin_ns);
      const auto worker = static_cast<size_t>(event.worker);
      rows[{event.rank, event.worker}] = worker < timeline.worker_names.size()
                                             ? timeline.worker_names[worker]
                                             : "worker " + std::to_string(event.worker);
    }
  }
  TraceWriter writer(rows.empty() ? 0 : origin);
  int32_t last_rank = -1;
  for (const auto& [key, worker_name] : rows) {
    if (key.first != last_rank) writer.metadata("process_name", key.first, 0, "rank " + std::to_string(key.first));
    last_rank = key.first;
    writer.metadata("thread_name", key.first, key.second, worker_name);
  }
  for (const Timeline& timeline : timelines) {
    for (const TimelineEvent& event : timeline.events) writer.event(event);
  }
  return writer.finish();
}

OverlapTimes overlap_times(std::span<const Timeline> timelines) {
  OverlapTimes times;
  for (const Timeline& timeline : timelines) {
    for (const TimelineEvent& event : timeline.events) {
      const bool tile = event.span == Span::kTile;
      const bool copy = event.span == Span::kCopy;
      if (!tile && !copy) continue;
      if (times.first_ns == 0 || event.begin_ns < times.first_ns) times.first_ns = event.begin_ns;
      if (tile) times.gemm_end_ns = std::max(times.gemm_end_ns, event.end_ns);
      if (copy) times.landed_ns = std::max(times.landed_ns, event.end_ns);
    }
  }
  return times;
}

}  // namespace tileoverlap
