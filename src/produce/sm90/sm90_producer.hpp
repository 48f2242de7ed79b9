#pragma once
// GpuProducer over one sm_90a kernel. Instantiated once a file: a translation unit takes minutes and gigabytes.

#include <cuda_runtime_api.h>

#include <limits>
#include <string>

#include "core/cuda_objects.hpp"
#include "core/text.hpp"
#include "cutlass/device_kernel.h"
#include "produce/gpu_producer.hpp"
#include "produce/sm90/expert_gemm.hpp"
#include "tileoverlap/core/error.hpp"
#include "tileoverlap/core/math.hpp"

namespace tileoverlap::sm90 {

template <class Gemm, DType Type, ExpertKind Activation>
class Sm90Producer final : public GpuProducer {
 public:
  int32_t tile_m() const override { return Gemm::kTileM; }
  int32_t tile_n() const override { return Gemm::kOutputTileN; }
  DType dtype() const override { return Type; }
  ExpertKind activation() const override { return Activation; }
  int32_t min_capability() const override { return 90; }
  bool exact_capability() const override { return true; }
  std::string name() const override {
    return text("sm90a_", tileoverlap::name(Type), "_", tile_m(), "x", tile_n(), "_",
                Gemm::kCooperative ? "cooperative" : "pingpong", "_", tileoverlap::name(Activation));
  }

  void load() const override {
    cuda_check(cudaFuncSetAttribute(kernel(), cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes),
               text("loading ", name()));
    cudaFuncAttributes attributes;
    cuda_check(cudaFuncGetAttributes(&attributes, kernel()), text("loading ", name()));
  }

  void launch(const GemmTask& task, cudaStream_t stream) const override {
    const auto params = Kernel::to_underlying_arguments(arguments(task), nullptr);
    cutlass::device_kernel<Kernel>
        <<<static_cast<uint32_t>(task.ctas), Kernel::MaxThreadsPerBlock, kSharedBytes, stream>>>(params);
    cuda_check(cudaGetLastError(), text("launching ", name(), " on ", task.ctas, " CTAs"));
  }

  size_t table_entry_bytes() const override { return Gemm::kParts * sizeof(TensorMap); }

  void encode_table(std::span<const void* const> weights, int64_t row_stride, int64_t k, int64_t n,
                    std::byte* table) const override {
    auto* maps = reinterpret_cast<TensorMap*>(table);
    for (const void* expert : weights) {
      for (int part = 0; part < Gemm::kParts; ++part) {
        const auto* matrix = static_cast<const Element*>(expert) + part * n * row_stride;
        typename Mainloop::Arguments arguments{};
        arguments.ptr_B = matrix;
        arguments.dB = WeightStride{row_stride, {}, n * row_stride};
        arguments.matrices = 1;
        *maps++ = Mainloop::encode(cute::make_shape(1, static_cast<int>(n), static_cast<int>(k), 1), arguments);
      }
    }
  }

  size_t owner_entry_bytes() const override { return Gemm::kStoresToOwners ? sizeof(OwnerMaps) : 0; }

  void encode_owner(std::byte* memory, int64_t rows, int64_t n, std::byte* entry) const override {
    if constexpr (Gemm::kStoresToOwners) {
      *reinterpret_cast<OwnerMaps*>(entry) = sm90::encode_owner<Element>(memory, rows, n);
    }
  }

 private:
  using Kernel = typename Gemm::Kernel;
  using Mainloop = typename Gemm::Mainloop;
  using Element = typename Gemm::ElementType;
  static constexpr int kSharedBytes = Kernel::SharedStorageSize;
  static const void* kernel() { return reinterpret_cast<const void*>(&cutlass::device_kernel<Kernel>); }

  static typename Kernel::Arguments arguments(const GemmTask& task) {
    const auto narrow = [](int64_t value) { return static_cast<int>(value); };
    const auto tiles_n = static_cast<int32_t>(ceil_div(task.n, Gemm::kOutputTileN));
    typename Kernel::Arguments arguments{};
    arguments.mode = cutlass::gemm::GemmUniversalMode::kBatched;
    arguments.problem_shape = {narrow(task.rows), narrow(task.n), narrow(task.k), task.experts};
    auto& mainloop = arguments.mainloop;
    mainloop.ptr_A = static_cast<const Element*>(task.input);
    mainloop.dA = FlatStride{task.input_stride, {}, {}};
    // A table has its own maps; the one map of the kernel must be valid all the same.
    const bool tabled = task.weights.table != nullptr;
    mainloop.ptr_B = static_cast<const Element*>(tabled ? task.input : task.weights.tensor);
    mainloop.matrices = tabled ? 1 : task.experts * Gemm::kParts;
    mainloop.dB = WeightStride{
        task.weights.row_stride, {}, Gemm::kParts == 1 ? task.weights.expert_stride : task.n * task.weights.row_stride};
    mainloop.table = static_cast<const TensorMap*>(task.weights.table);
    auto& epilogue = arguments.epilogue;
    epilogue.ptr_C = nullptr;
    epilogue.ptr_D = static_cast<Element*>(task.output);
    epilogue.dD = FlatStride{task.output_stride, {}, {}};
    epilogue.thread.alpha = 1.0f;
    epilogue.thread.beta = 0.0f;
    epilogue.publish = {task.publish, task.store, tiles_n};
    arguments.hw_info.sm_count = task.ctas;
    arguments.hw_info.max_active_clusters = task.ctas;
    arguments.scheduler.order = {task.head, task.order, cutlass::FastDivmod(tiles_n), task.first_expert};
    return arguments;
  }
};

}  // namespace tileoverlap::sm90
