#include "tileoverlap/core/error.hpp"

#include <iomanip>
#include <sstream>

namespace tileoverlap {
namespace {

const char* what_text(WaitFor what) {
  switch (what) {
    case WaitFor::kCounts:
      return "the counts";
    case WaitFor::kMemory:
      return "the symmetric memory";
    case WaitFor::kDispatchCredit:
      return "free input rows (dispatch credit)";
    case WaitFor::kDispatchArrival:
      return "the dispatched rows";
    case WaitFor::kBand:
      return "a tile flag";
    case WaitFor::kCredit:
      return "free staging (credit)";
    case WaitFor::kArrival:
      return "the returned rows";
    case WaitFor::kPeerClosed:
      return "its part of the call";
    case WaitFor::kSamePlan:
      return "the same plan";
    case WaitFor::kSameTerms:
      return "the same options";
    case WaitFor::kError:
      return "nothing";
    case WaitFor::kConnection:
      return "the connection";
    case WaitFor::kHostMessage:
      return "the host message";
  }
  return "?";
}

void put(std::ostream& out, const char* label, int32_t value) {
  if (value >= 0) out << ' ' << label << ' ' << value;
}

}  // namespace

const char* stage_of(WaitFor what) {
  switch (what) {
    case WaitFor::kCounts:
      return "routing";
    case WaitFor::kMemory:
    case WaitFor::kConnection:
    case WaitFor::kHostMessage:
      return "transport";
    case WaitFor::kDispatchCredit:
    case WaitFor::kDispatchArrival:
      return "dispatch";
    case WaitFor::kBand:
    case WaitFor::kCredit:
      return "consume";
    case WaitFor::kArrival:
      return "reduce";
    case WaitFor::kPeerClosed:
    case WaitFor::kSamePlan:
    case WaitFor::kSameTerms:
    case WaitFor::kError:
      return "execute";
  }
  return "?";
}

std::string describe(const WaitRecord& record) {
  std::ostringstream out;
  const double seconds = static_cast<double>(record.timeout_ns) * 1e-9;
  out << "rank " << record.rank << ", stage " << stage_of(record.what) << ", epoch " << record.epoch << ": ";
  if (record.what == WaitFor::kError) {
    out << "an error ended its call";
  } else if (record.what == WaitFor::kSamePlan) {
    out << "rank " << record.peer << " runs another plan (" << std::hex << record.seen << ", here " << record.expected
        << std::dec << "): the counts differ, or one of the two has left out a call";
  } else if (record.what == WaitFor::kSameTerms) {
    out << "rank " << record.peer << " was prepared with other options (terms " << std::hex << record.seen << ", here "
        << record.expected << std::dec << "): all ranks must prepare alike";
  } else if (record.what == WaitFor::kPeerClosed) {
    out << "rank " << record.peer << " closed its session while rank " << record.rank << " still waited for "
        << what_text(record.what);
  } else {
    out << "waited " << std::setprecision(4) << seconds << " s for " << what_text(record.what) << " of rank "
        << record.peer;
  }
  std::ostringstream where;
  put(where, "expert", record.expert);
  put(where, "band", record.band);
  put(where, "tile", record.tile);
  put(where, "segment", record.segment);
  if (!where.str().empty()) out << ',' << where.str();
  const bool counts_bytes = record.what == WaitFor::kArrival || record.what == WaitFor::kDispatchArrival;
  const bool counts_epochs =
      record.what == WaitFor::kBand || record.what == WaitFor::kCredit || record.what == WaitFor::kDispatchCredit;
  if (counts_bytes) out << ": " << record.seen << " of " << record.expected << " bytes of this call arrived";
  if (counts_epochs) out << ": saw epoch " << record.seen << ", needed " << record.expected;
  return out.str();
}

WaitTimeout::WaitTimeout(const WaitRecord& record, int32_t raised_on, const std::string& detail)
    : Error((raised_on == record.rank ? describe(record)
                                      : "rank " + std::to_string(raised_on) + " was told by rank " +
                                            std::to_string(record.rank) + ": " + describe(record)) +
            (detail.empty() ? "" : ", " + detail)),
      record_(record),
      raised_on_(raised_on) {}

}  // namespace tileoverlap
