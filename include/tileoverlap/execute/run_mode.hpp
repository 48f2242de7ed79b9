#pragma once
// Whether the return path runs under the GEMM or behind it.

#include <cstdint>

#include "tileoverlap/core/api.hpp"

namespace tileoverlap {

enum class RunMode : int32_t {
  kOverlapped,
  kSerial,  // the consumer starts when the GEMM has ended: the same bits, for comparison
};

TILEOVERLAP_API const char* name(RunMode mode);  // "overlapped", "serial"

}  // namespace tileoverlap
