#pragma once
// Reading the message of an error: a test that only sees the type would pass on an error of another cause.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cctype>
#include <exception>
#include <string>
#include <typeinfo>
#include <vector>

namespace tileoverlap::testing {

// The message of the `ErrorType` that `function` throws; that very type, not one derived from it. Fails the test
// otherwise.
template <class ErrorType, class Function>
std::string message_of(Function&& function) {
  try {
    function();
  } catch (const ErrorType& error) {
    if (typeid(error) != typeid(ErrorType)) {
      ADD_FAILURE() << "threw " << typeid(error).name() << " in place of its base: " << error.what();
    }
    return error.what();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "threw " << typeid(error).name() << ": " << error.what();
    return {};
  }
  ADD_FAILURE() << "did not throw";
  return {};
}

// Whether `part` stands in `text` as words of their own: "4" is not found in "4096", nor "k" in "rank".
inline bool has_words(const std::string& text, const std::string& part) {
  const auto in_word = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; };
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
    const size_t end = at + part.size();
    const bool free_before = at == 0 || !in_word(part.front()) || !in_word(text[at - 1]);
    const bool free_behind = end == text.size() || !in_word(part.back()) || !in_word(text[end]);
    if (free_before && free_behind) return true;
  }
  return false;
}

MATCHER_P(SaysAll, parts, "a message with all of " + ::testing::PrintToString(parts)) {
  for (const std::string& part : parts) {
    if (!has_words(arg, part)) {
      *result_listener << "it lacks '" << part << "'";
      return false;
    }
  }
  return true;
}

template <class... Parts>
auto Says(const Parts&... parts) {
  return SaysAll(std::vector<std::string>{std::string(parts)...});
}

}  // namespace tileoverlap::testing
