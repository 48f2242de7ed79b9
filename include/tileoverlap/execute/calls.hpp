#pragma once
// What sessions and layers have in common: calls that are started, complete in order, and can be waited for.

#include <cstdint>
#include <string>

#include "tileoverlap/core/api.hpp"
#include "tileoverlap/core/timeline.hpp"
#include "tileoverlap/plan/capacity.hpp"

namespace tileoverlap {

// One rank's calls. Thread safe; calls from several threads are ordered, never interleaved.
class TILEOVERLAP_API Calls {
 public:
  virtual ~Calls() = default;
  // Waits until every call so far has completed; then throws CallRefused for the first call of a layer that a rank
  // refused since the last synchronize(), or what check() throws.
  virtual void synchronize() = 0;
  // Waits as long as synchronize() would, but not longer than `limit_ns`; true if every call so far has completed.
  virtual bool wait(int64_t limit_ns) = 0;
  // Throws WaitTimeout if a call has failed; from then on nothing can be run. Does not wait.
  virtual void check() = 0;
  virtual int32_t rank() const = 0;
  // Of the last call that has begun. Calls of a layer that are refused count on a GPU, which learns of a refusal too
  // late, and do not on the CPU.
  virtual uint64_t epoch() const = 0;
  virtual SizeReport sizes() const = 0;
  // Of the last completed call, where the options' record_timeline is set. Call after synchronize().
  virtual Timeline timeline() const = 0;
  virtual std::string repr() const = 0;
};

}  // namespace tileoverlap
