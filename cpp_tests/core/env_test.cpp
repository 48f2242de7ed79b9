// The environment variables that set the limits of waits.

#include "tileoverlap/core/env.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

#include "support/messages.hpp"
#include "support/scoped_env.hpp"
#include "tileoverlap/core/error.hpp"

namespace tileoverlap {
namespace {

using testing::message_of;
using testing::Says;
using testing::ScopedEnv;

constexpr const char* kTimeout = "TILEOVERLAP_TIMEOUT_S";
constexpr const char* kWarmup = "TILEOVERLAP_WARMUP_TIMEOUT_S";

TEST(Environment, WithoutVariablesTheLimitsAreTheDocumentedDefaults) {
  const ScopedEnv timeout(kTimeout, std::nullopt), warmup(kWarmup, std::nullopt);
  EXPECT_EQ(Env::read().timeout_ns, 300'000'000'000);
  EXPECT_EQ(Env::read().warmup_timeout_ns, 600'000'000'000);
}

TEST(Environment, AChosenTimeoutAlsoLimitsTheWarmup) {
  const ScopedEnv timeout(kTimeout, "2.5"), warmup(kWarmup, std::nullopt);
  EXPECT_EQ(Env::read().timeout_ns, 2'500'000'000);
  EXPECT_EQ(Env::read().warmup_timeout_ns, 2'500'000'000);
}

TEST(Environment, AChosenWarmupTimeoutStandsByItself) {
  const ScopedEnv timeout(kTimeout, std::nullopt), warmup(kWarmup, "7");
  EXPECT_EQ(Env::read().timeout_ns, 300'000'000'000);
  EXPECT_EQ(Env::read().warmup_timeout_ns, 7'000'000'000);
}

TEST(Environment, BothVariablesAreReadApart) {
  const ScopedEnv timeout(kTimeout, "1e2"), warmup(kWarmup, "0.25");
  EXPECT_EQ(Env::read().timeout_ns, 100'000'000'000);
  EXPECT_EQ(Env::read().warmup_timeout_ns, 250'000'000);
}

class BadTimeout : public ::testing::TestWithParam<const char*> {};

TEST_P(BadTimeout, IsRefusedByVariableAndValue) {
  for (const char* variable : {kTimeout, kWarmup}) {
    const ScopedEnv timeout(kTimeout, std::nullopt), warmup(kWarmup, std::nullopt);
    const ScopedEnv bad(variable, GetParam());
    EXPECT_THAT(message_of<InvalidArgument>([] { Env::read(); }), Says(variable, GetParam(), "seconds"));
  }
}
INSTANTIATE_TEST_SUITE_P(Values, BadTimeout,
                         ::testing::Values("soon", "0", "-1", "5s", "inf", "nan", "1e10", "1e999", "0x", "3 4"));

TEST(Environment, TheReportListsEveryVariableWithItsValue) {
  const ScopedEnv timeout(kTimeout, "12"), warmup(kWarmup, std::nullopt);
  const auto list = list_env();
  const auto find = [&](const char* name) {
    return std::find_if(list.begin(), list.end(), [&](const EnvVariable& v) { return v.name == name; });
  };
  const auto set = find(kTimeout), unset = find(kWarmup);
  ASSERT_NE(set, list.end());
  ASSERT_NE(unset, list.end());
  EXPECT_TRUE(set->is_set);
  EXPECT_EQ(set->value, "12");
  EXPECT_FALSE(unset->is_set);
  EXPECT_EQ(unset->value, "");
  for (const EnvVariable& variable : list) EXPECT_NE(variable.meaning, "") << variable.name;
}

}  // namespace
}  // namespace tileoverlap
