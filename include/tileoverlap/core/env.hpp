#pragma once
// Environment variables the library reads, all in one place. Each is read when an object that uses it is made.

#include <cstdint>
#include <string>
#include <vector>

#include "tileoverlap/core/api.hpp"

namespace tileoverlap {

// Limits are at most 31 years: added to the time of day they stay below 2^63 ns.
inline constexpr int64_t kLongestTimeoutNs = 1'000'000'000'000'000'000;

struct Env {
  // TILEOVERLAP_TIMEOUT_S: limit of every device or thread wait, seconds, > 0. Default 300.
  int64_t timeout_ns = 300'000'000'000;
  // TILEOVERLAP_WARMUP_TIMEOUT_S: the limit during the first call of a session. Default: 600, or the timeout where
  // that was set (a limit that somebody chose is not silently doubled).
  int64_t warmup_timeout_ns = 600'000'000'000;

  // Throws InvalidArgument naming the variable, its value and what is accepted.
  TILEOVERLAP_API static Env read();
};

struct EnvVariable {
  std::string name, value, meaning;
  bool is_set = false;
};
// Every variable with its present value, for reports.
TILEOVERLAP_API std::vector<EnvVariable> list_env();

}  // namespace tileoverlap
