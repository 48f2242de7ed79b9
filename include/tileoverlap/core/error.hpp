#pragma once
// What can go wrong, as exception types. Every message is one sentence with names and numbers.

#include <cstdint>
#include <stdexcept>
#include <string>

#include "tileoverlap/core/api.hpp"

namespace tileoverlap {

class TILEOVERLAP_API Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A value, shape, stride, device or combination of arguments that cannot be used. Nothing was launched or written.
class TILEOVERLAP_API InvalidArgument : public Error {
 public:
  using Error::Error;
};

// A tensor whose element type is not one of those accepted.
class TILEOVERLAP_API DTypeError : public InvalidArgument {
 public:
  using InvalidArgument::InvalidArgument;
};

// A call that needs more than the session was prepared for (max_tokens). The session stays usable.
class TILEOVERLAP_API CapacityError : public InvalidArgument {
 public:
  using InvalidArgument::InvalidArgument;
};

// One rank refused a collective layer call; every rank's call ends with this error and the layer stays usable.
class TILEOVERLAP_API CallRefused : public Error {
 public:
  using Error::Error;
};

// A broken invariant of the library itself.
class TILEOVERLAP_API InternalError : public Error {
 public:
  using Error::Error;
};

// What a bounded wait was waiting for.
enum class WaitFor : int32_t {
  kCounts,           // routing: a peer's row of the counts matrix
  kMemory,           // transport: a peer's symmetric memory (the peer has not called prepare)
  kDispatchCredit,   // dispatch: a peer's input rows are free again
  kDispatchArrival,  // dispatch: the rows that a peer sends to this rank's experts
  kBand,             // consume: the tile flags of a band
  kCredit,           // consume: an owner's staging is free again
  kArrival,          // reduce: the rows that a peer returns to this rank
  kPeerClosed,       // the peer closed its session while this rank still needed it
  kSamePlan,         // the peer runs another plan: other counts, or the ranks are not in the same call
  kSameTerms,        // the peer was prepared with other options
  kError,            // an error on `rank` itself ended its call; synchronize() throws it there
  kConnection,       // transport: a peer's connection to the host all-gather
  kHostMessage,      // transport: a peer's message of a host all-gather
};

// Who waited for whom: written by the wait that reached its limit, kept until the session is destroyed.
// Indices that do not apply are -1. `seen` and `expected` are epochs for flags and credits, bytes of this call for
// arrivals, fingerprints for plans, hashes for terms, and 0 for the others.
struct WaitRecord {
  WaitFor what = WaitFor::kArrival;
  int32_t rank = -1;     // the rank that waited
  int32_t peer = -1;     // the rank it waited for (its own number for a band of its own GEMM)
  int32_t expert = -1;   // global expert id
  int32_t band = -1;     // band of `rank`'s output
  int32_t tile = -1;     // column tile of the band
  int32_t segment = -1;  // segment of `rank`'s plan
  uint64_t epoch = 0;    // the call of this session, counted from 1
  uint64_t seen = 0;
  uint64_t expected = 0;
  int64_t timeout_ns = 0;
};

TILEOVERLAP_API std::string describe(const WaitRecord& record);
TILEOVERLAP_API const char* stage_of(WaitFor what);  // the stage's folder name: "consume", "reduce", ...

// A bounded wait ended without what it waited for, because its limit was reached, the peer has closed, or the ranks'
// calls do not belong together: on the rank it is raised on, or (then raised_on() differs from record().rank) on a
// peer that told this one.
class TILEOVERLAP_API WaitTimeout : public Error {
 public:
  // `detail` ends the sentence that describe() makes.
  WaitTimeout(const WaitRecord& record, int32_t raised_on, const std::string& detail = {});
  const WaitRecord& record() const { return record_; }
  int32_t raised_on() const { return raised_on_; }

 private:
  WaitRecord record_;
  int32_t raised_on_;
};

}  // namespace tileoverlap
