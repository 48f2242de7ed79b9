#pragma once
// Large zeroed buffers. calloc, not new: pages that a call never touches are never made, and buffers are sized for the
// worst routing.

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>

namespace tileoverlap {

struct FreeBytes {
  void operator()(std::byte* memory) const { std::free(memory); }
};
using ZeroedBytes = std::unique_ptr<std::byte, FreeBytes>;

// Aligned for any scalar type. Throws std::bad_alloc.
inline ZeroedBytes zeroed_bytes(size_t bytes) {
  ZeroedBytes memory(static_cast<std::byte*>(std::calloc(bytes > 0 ? bytes : 1, 1)));
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace tileoverlap
