#pragma once
// An environment variable for the length of a test.

#include <cstdlib>
#include <optional>
#include <string>

namespace tileoverlap::testing {

class ScopedEnv {
 public:
  // Without a value the variable is unset.
  ScopedEnv(const char* name, std::optional<std::string> value) : name_(name) {
    if (const char* before = std::getenv(name)) before_ = before;
    apply(value);
  }
  ~ScopedEnv() { apply(before_); }
  ScopedEnv(const ScopedEnv&) = delete;
  ScopedEnv& operator=(const ScopedEnv&) = delete;

 private:
  void apply(const std::optional<std::string>& value) {
    if (value) {
      setenv(name_.c_str(), value->c_str(), 1);
    } else {
      unsetenv(name_.c_str());
    }
  }

  std::string name_;
  std::optional<std::string> before_;
};

}  // namespace tileoverlap::testing
