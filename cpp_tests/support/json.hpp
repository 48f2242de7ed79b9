#pragma once
// Reads JSON strictly, so that a trace which a viewer would refuse fails a test.

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace tileoverlap::testing {

struct Json {
  enum class Kind { kNull, kBool, kNumber, kString, kArray, kObject };
  Kind kind = Kind::kNull;
  double number = 0;  // 1 for true
  std::string text;   // of a string; the digits of a number
  std::vector<Json> array;
  std::map<std::string, Json> object;

  bool has(const std::string& key) const { return object.count(key) != 0; }
  // Throws std::runtime_error where there is no such key.
  const Json& operator[](const std::string& key) const;
};

// Throws std::runtime_error with the position of the first error.
Json parse_json(std::string_view text);

}  // namespace tileoverlap::testing
