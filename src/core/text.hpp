#pragma once
// Building messages.

#include <cstdint>
#include <sstream>
#include <string>

namespace tileoverlap {

// "[4, 256]"; entries of -1 print as "any".
template <class Sizes>
std::string shape_text(const Sizes& sizes, int64_t count) {
  std::ostringstream out;
  out << '[';
  for (int64_t i = 0; i < count; ++i) {
    if (i > 0) out << ", ";
    if (sizes[static_cast<size_t>(i)] == -1) {
      out << "any";
    } else {
      out << sizes[static_cast<size_t>(i)];
    }
  }
  out << ']';
  return out.str();
}

template <class... Parts>
std::string text(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

}  // namespace tileoverlap
