#pragma once
// The executor for machines without a GPU, and the one that tests compare with: threads in place of kernels, the same
// plan, flags, epochs, counters, credits and limits.

#include <cstdint>
#include <memory>

#include "tileoverlap/execute/executor.hpp"

namespace tileoverlap {

// Faults and disorder for tests. The defaults change nothing.
struct CpuFaults {
  uint64_t shuffle_seed = 0;   // != 0: tiles, segments and tokens are taken in a random order, another in each run
  int32_t max_delay_us = 0;    // > 0: a random wait up to this between store, flag and send
  int32_t withhold_band = -1;  // >= 0: this rank's band is computed and never published
  bool poison = false;         // fill staging, rows and outputs with NaN whenever nobody may read them
  uint64_t first_epoch = 0;    // the session's calls are counted from first_epoch + 1 (equal on all ranks)
};

struct CpuOptions {
  int32_t producer_threads = 1;  // a rank, > 0
  int32_t consumer_threads = 1;  // a rank, > 0
  CpuFaults faults = {};
};

// Errors: InvalidArgument. Results do not depend on the options.
TILEOVERLAP_API std::unique_ptr<Executor> make_cpu_executor(std::shared_ptr<Transport> transport,
                                                            const CpuOptions& options = {});

}  // namespace tileoverlap
