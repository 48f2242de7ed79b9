#include "tileoverlap/execute/run_mode.hpp"

namespace tileoverlap {

const char* name(RunMode mode) { return mode == RunMode::kSerial ? "serial" : "overlapped"; }

}  // namespace tileoverlap
