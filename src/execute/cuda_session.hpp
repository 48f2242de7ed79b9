#pragma once
// Session and MoeLayer of the CUDA executor.

#include <memory>

#include "tileoverlap/execute/cuda_executor.hpp"

namespace tileoverlap {

std::unique_ptr<Session> make_cuda_session(const std::shared_ptr<Transport>& transport, const CudaOptions& cuda,
                                           const SessionOptions& options);
std::unique_ptr<MoeLayer> make_cuda_layer(const std::shared_ptr<Transport>& transport, const CudaOptions& cuda,
                                          const LayerOptions& options);

}  // namespace tileoverlap
