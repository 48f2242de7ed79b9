#pragma once
// Building messages.

#include <cstdint>
#include <sstream>
#include <string>

namespace tileoverlap {

// "[4, 256]".
template <class Sizes>
std::string shape_text(const Sizes& sizes, int64_t count) {
  std::ostringstream out;
  out << '[';
  for (int64_t i = 0; i < count; ++i) {
    if (i > 0) out << ", ";
    out << sizes[static_cast<size_t>(i)];
  }
  out << ']';
  return out.str();
}

// "0..7"; "nothing (there are none)" for an empty range.
inline std::string range_text(int64_t begin, int64_t end) {
  return begin < end ? std::to_string(begin) + ".." + std::to_string(end - 1) : "nothing (there are none)";
}

template <class... Parts>
std::string text(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

}  // namespace tileoverlap
