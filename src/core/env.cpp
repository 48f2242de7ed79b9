#include "tileoverlap/core/env.hpp"

#include <cmath>
#include <cstdlib>

#include "core/text.hpp"
#include "tileoverlap/core/error.hpp"

namespace tileoverlap {
namespace {

constexpr const char* kTimeout = "TILEOVERLAP_TIMEOUT_S";
constexpr const char* kWarmupTimeout = "TILEOVERLAP_WARMUP_TIMEOUT_S";

// Nanoseconds of a variable given in seconds; 0 where it is not set.
int64_t read_seconds(const char* variable) {
  const char* value = std::getenv(variable);
  if (value == nullptr || *value == '\0') return 0;
  char* end = nullptr;
  const double seconds = std::strtod(value, &end);
  constexpr double kNsPerSecond = 1e9;
  if (*end != '\0' || !std::isfinite(seconds) || seconds < 1e-3 ||
      seconds * kNsPerSecond > static_cast<double>(kLongestTimeoutNs)) {
    throw InvalidArgument(text(variable, " must be a number of seconds from 0.001 to 1e9, got '", value, "'"));
  }
  return static_cast<int64_t>(seconds * kNsPerSecond);
}

std::string value_of(const char* variable) {
  const char* value = std::getenv(variable);
  return value == nullptr ? "" : value;
}

}  // namespace

Env Env::read() {
  Env env;
  const int64_t timeout = read_seconds(kTimeout);
  const int64_t warmup = read_seconds(kWarmupTimeout);
  if (timeout > 0) env.timeout_ns = env.warmup_timeout_ns = timeout;
  if (warmup > 0) env.warmup_timeout_ns = warmup;
  return env;
}

std::vector<EnvVariable> list_env() {
  std::vector<EnvVariable> list = {
      {kTimeout, "", "limit of every wait, seconds (default 300)", false},
      {kWarmupTimeout, "",
       "limit of every wait of a session's first call, seconds (default 600, or the timeout if set)", false},
  };
  for (EnvVariable& variable : list) {
    variable.value = value_of(variable.name.c_str());
    variable.is_set = std::getenv(variable.name.c_str()) != nullptr;
  }
  return list;
}

}  // namespace tileoverlap
