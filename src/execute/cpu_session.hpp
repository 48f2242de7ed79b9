#pragma once
// Session and MoeLayer of the CPU executor.

#include <memory>

#include "tileoverlap/execute/cpu_executor.hpp"

namespace tileoverlap {

std::unique_ptr<Session> make_cpu_session(const std::shared_ptr<Transport>& transport, const CpuOptions& cpu,
                                          const SessionOptions& options);
std::unique_ptr<MoeLayer> make_cpu_layer(const std::shared_ptr<Transport>& transport, const CpuOptions& cpu,
                                         const LayerOptions& options);

}  // namespace tileoverlap
