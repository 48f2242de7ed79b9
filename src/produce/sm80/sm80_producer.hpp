#pragma once
// GpuProducer over one kernel for compute capability 8.0 and later.

#include <cuda_runtime_api.h>

#include <cstring>
#include <limits>
#include <string>
#include <type_traits>

#include "core/cuda_objects.hpp"
#include "core/text.hpp"
#include "produce/gpu_producer.hpp"
#include "produce/sm80/expert_gemm.cuh"
#include "tileoverlap/core/error.hpp"
#include "tileoverlap/core/math.hpp"

namespace tileoverlap::sm80 {

template <class Gemm>
class Sm80Producer final : public GpuProducer {
 public:
  int32_t tile_m() const override { return Gemm::kTileM; }
  int32_t tile_n() const override { return Gemm::kTileN; }
  DType dtype() const override {
    return std::is_same_v<typename Gemm::Element, cutlass::half_t> ? DType::kFloat16 : DType::kBFloat16;
  }
  ExpertKind activation() const override { return Gemm::kActivation; }
  int32_t min_capability() const override { return 80; }
  bool exact_capability() const override { return false; }
  std::string name() const override {
    return text("sm80_", tileoverlap::name(dtype()), "_", tile_m(), "x", tile_n(), "_",
                tileoverlap::name(activation()));
  }

  void load() const override {
    cuda_check(cudaFuncSetAttribute(kernel(), cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes),
               text("loading ", name(), " with ", kSharedBytes, " bytes of shared memory"));
    cudaFuncAttributes attributes;
    cuda_check(cudaFuncGetAttributes(&attributes, kernel()), text("loading ", name()));
  }

  void launch(const GemmTask& task, cudaStream_t stream) const override {
    // CUTLASS counts columns in 32 bits; a tile's rows it counts from the tile's first one.
    constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
    if (task.k > kMost || task.n > kMost)
      throw InternalError(text(name(), ": k and n must be below 2^31, got k = ", task.k, ", n = ", task.n));
    Params params{task, static_cast<int32_t>(ceil_div(task.n, Gemm::kTileN)),
                  cutlass::layout::RowMajor(task.input_stride), cutlass::layout::ColumnMajor(task.weights.row_stride),
                  cutlass::layout::RowMajor(task.output_stride)};
    void* arguments[] = {&params};
    cuda_check(cudaLaunchKernel(kernel(), dim3(static_cast<uint32_t>(task.ctas)), dim3(Gemm::kThreads), arguments,
                                kSharedBytes, stream),
               text("launching ", name(), " on ", task.ctas, " CTAs of ", Gemm::kThreads, " threads and ", kSharedBytes,
                    " bytes of shared memory"));
  }

  // An entry is a pointer; strides and widths come with the launch.
  size_t table_entry_bytes() const override { return sizeof(void*); }
  void encode_table(std::span<const void* const> weights, int64_t, int64_t, int64_t, std::byte* table) const override {
    std::memcpy(table, weights.data(), weights.size_bytes());
  }

 private:
  using Params = typename Gemm::Params;
  static constexpr int kSharedBytes = static_cast<int>(sizeof(typename Gemm::SharedStorage));
  static const void* kernel() { return reinterpret_cast<const void*>(&expert_gemm<Gemm>); }
};

}  // namespace tileoverlap::sm80
