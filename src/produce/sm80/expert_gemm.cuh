#pragma once
// The GEMM for compute capability 8.0 and later: mma.sync and cp.async, CUTLASS's tile inside a persistent loop of
// ours.
//
// CTA i computes the tiles i, i + CTAs, i + 2 * CTAs, ... of the schedule. Every tile sees its operands through
// pointers to its own first row, moved there in 64 bits: CUTLASS's 32-bit coordinates never count more than a tile's
// rows.

#include "cutlass/cutlass.h"
#include "cutlass/epilogue/thread/linear_combination.h"
#include "cutlass/gemm/kernel/default_gemm.h"
#include "cutlass/gemm/threadblock/threadblock_swizzle.h"

#include "core/ptx.cuh"
#include "produce/gpu_producer.hpp"
#include "tileoverlap/core/math.hpp"

namespace tileoverlap::sm80 {

// `ThreadblockShape` is the output's tile and a step in k, `WarpShape` a warp's part of it.
template <class ElementType, class ThreadblockShape, class WarpShape, int Stages, ExpertKind Activation>
struct ExpertGemm {
  using Element = ElementType;
  static constexpr ExpertKind kActivation = Activation;
  static constexpr bool kGated = Activation == ExpertKind::kSiluGate;
  static constexpr int kTileM = ThreadblockShape::kM, kTileN = ThreadblockShape::kN, kTileK = ThreadblockShape::kK;
  static constexpr int kVectorElements = 16 / sizeof(Element);

  // Sums stay in float32 until the one rounding here.
  using Round = cutlass::epilogue::thread::LinearCombination<Element, kVectorElements, float, float,
                                                             cutlass::epilogue::thread::ScaleType::Nothing>;
  using Tile = cutlass::gemm::kernel::DefaultGemm<
      Element, cutlass::layout::RowMajor, kVectorElements, Element, cutlass::layout::ColumnMajor, kVectorElements,
      Element, cutlass::layout::RowMajor, float, cutlass::arch::OpClassTensorOp, cutlass::arch::Sm80, ThreadblockShape,
      WarpShape, cutlass::gemm::GemmShape<16, 8, 16>, Round,
      cutlass::gemm::threadblock::GemmIdentityThreadblockSwizzle<>, Stages, false, cutlass::arch::OpMultiplyAdd>;
  using Mma = typename Tile::Mma;
  using Epilogue = typename Tile::Epilogue;
  using Accumulators = typename Mma::FragmentC;
  using InputIterator = typename Mma::IteratorA;
  using WeightIterator = typename Mma::IteratorB;
  using OutputIterator = typename Epilogue::OutputTileIterator;
  static constexpr int kThreads = Mma::WarpCount::kCount * 32;

  union SharedStorage {
    typename Mma::SharedStorage mma;
    typename Epilogue::SharedStorage epilogue;
  };

  // Made on the host: the iterators' parts hold what follows from the strides.
  struct Params {
    GemmTask task;
    int32_t tiles_n;
    typename InputIterator::Params input;
    typename WeightIterator::Params weights;
    typename OutputIterator::Params output;
  };
};

struct ThreadPosition {
  int thread, warp, lane;
};

template <class Element>
__device__ const Element* weights_of(const ExpertWeights& weights, int32_t local_expert) {
  if (weights.table != nullptr) return static_cast<const Element* const*>(weights.table)[local_expert];
  return static_cast<const Element*>(weights.tensor) + element_offset(local_expert, weights.expert_stride);
}

// The sums of one tile: `rows` rows of input times `columns` rows of weights.
template <class Gemm>
__device__ void multiply(const typename Gemm::Params& params, const typename Gemm::Element* input, int rows,
                         const typename Gemm::Element* weights, int columns, ThreadPosition at,
                         typename Gemm::SharedStorage& shared, typename Gemm::Accumulators& sums) {
  using Element = typename Gemm::Element;
  const auto k = static_cast<int>(params.task.k);
  typename Gemm::InputIterator input_tiles(params.input, const_cast<Element*>(input), {rows, k}, at.thread);
  typename Gemm::WeightIterator weight_tiles(params.weights, const_cast<Element*>(weights), {k, columns}, at.thread);
  typename Gemm::Mma mma(shared.mma, at.thread, at.warp, at.lane);
  sums.clear();
  // Ends with a barrier behind the last read of shared memory, which is then free.
  mma((k + Gemm::kTileK - 1) / Gemm::kTileK, sums, input_tiles, weight_tiles, sums);
}

template <class Accumulators>
__device__ void gelu(Accumulators& values) {
  constexpr float kInverseSqrt2 = 0.70710678118654752f;
  CUTLASS_PRAGMA_UNROLL
  for (int i = 0; i < Accumulators::kElements; ++i) {
    const float x = values[i];
    values[i] = 0.5f * x * (1.0f + erff(x * kInverseSqrt2));
  }
}

// gate = silu(gate) * up. Both lie alike over the threads.
template <class Accumulators>
__device__ void silu_gate(Accumulators& gate, const Accumulators& up) {
  CUTLASS_PRAGMA_UNROLL
  for (int i = 0; i < Accumulators::kElements; ++i) gate[i] = gate[i] / (1.0f + expf(-gate[i])) * up[i];
}

// Called by all threads behind their stores of the tile. Leaves shared memory free for the next one.
__device__ inline void publish(const PublishTask& task, uint64_t epoch, TileCoord tile, int32_t tiles_n) {
  __syncthreads();  // the stores of all threads come before what thread 0 does now
  if (threadIdx.x != 0) return;
  const int64_t index = element_offset(tile.band, tiles_n, tile.tile_n);
  if (task.stamps != nullptr) task.stamps[index] = {ptx::global_timer_ns(), blockIdx.x, 0};
  if (task.flags == nullptr || tile.band == task.withheld_band) return;
  // Release: pairs with the acquire of the consumer that sees this call's epoch. The fence takes the other threads'
  // stores, ordered before by the barrier, along to the GPU's scope.
  __threadfence();
  ptx::store_release_gpu(task.flags + index, epoch);
}

template <class Gemm>
__global__ void __launch_bounds__(Gemm::kThreads, 1) expert_gemm(const __grid_constant__ typename Gemm::Params params) {
  using Element = typename Gemm::Element;
  extern __shared__ __align__(16) char shared_bytes[];
  auto& shared = *reinterpret_cast<typename Gemm::SharedStorage*>(shared_bytes);
  const GemmTask& task = params.task;
  const auto thread = static_cast<int>(threadIdx.x);
  const ThreadPosition at{thread, cutlass::canonical_warp_idx_sync(), thread % 32};
  const uint64_t epoch = task.publish.flags == nullptr ? 0 : ptx::load_relaxed_gpu(task.publish.epoch);
  const int64_t tiles = int64_t{task.head->bands} * params.tiles_n;

  for (int64_t i = blockIdx.x; i < tiles; i += gridDim.x) {
    const TileCoord tile = tile_at(task.order, i, params.tiles_n);
    const int64_t row = int64_t{tile.band} * Gemm::kTileM, column = int64_t{tile.tile_n} * Gemm::kTileN;
    const auto rows = static_cast<int>(min64(Gemm::kTileM, task.rows - row));
    const auto columns = static_cast<int>(min64(Gemm::kTileN, task.n - column));
    const Element* input = static_cast<const Element*>(task.input) + element_offset(row, task.input_stride);
    const Element* expert = weights_of<Element>(task.weights, tile.expert - task.first_expert);
    const Element* weights = expert + element_offset(column, task.weights.row_stride);

    typename Gemm::Accumulators sums;
    multiply<Gemm>(params, input, rows, weights, columns, at, shared, sums);
    if constexpr (Gemm::kActivation == ExpertKind::kGelu) gelu(sums);
    if constexpr (Gemm::kGated) {
      const Element* up = weights + element_offset(task.n, task.weights.row_stride);
      typename Gemm::Accumulators up_sums;
      multiply<Gemm>(params, input, rows, up, columns, at, shared, up_sums);
      silu_gate(sums, up_sums);
    }

    Element* output = static_cast<Element*>(task.output) + element_offset(row, task.output_stride, column);
    typename Gemm::Epilogue epilogue(shared.epilogue, at.thread, at.warp, at.lane);
    epilogue(typename Gemm::Round({}), typename Gemm::OutputIterator(params.output, output, {rows, columns}, at.thread),
             sums);
    publish(task.publish, epoch, tile, params.tiles_n);
  }
}

}  // namespace tileoverlap::sm80
