#pragma once
// Named ranges for profilers, by stage. Free where no profiler is attached; the header loads its library by itself.

#include <nvtx3/nvToolsExt.h>

namespace tileoverlap {

class NvtxRange {
 public:
  explicit NvtxRange(const char* name) { nvtxRangePushA(name); }
  ~NvtxRange() { nvtxRangePop(); }
  NvtxRange(const NvtxRange&) = delete;
  NvtxRange& operator=(const NvtxRange&) = delete;
};

}  // namespace tileoverlap
