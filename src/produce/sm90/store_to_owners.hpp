#pragma once
// CUTLASS extension: the rows of a tile go where they are wanted, each owner's into its own memory.
//
// The epilogue leaves a part of the tile in shared memory, and where CUTLASS's TMA store would write all of it to one
// tensor, this one cuts it into runs of rows of one owner each. A tensor map has boxes of one height, so each owner has
// a map for every power of two, and a run of any length is a few boxes. The swizzle of shared memory goes by address,
// so a box may begin at any row that is a whole line of it.

#include "cute/atom/copy_traits_sm90_tma.hpp"
#include "cute/tensor.hpp"
#include "cutlass/cuda_host_adapter.hpp"
#include "cutlass/cutlass.h"

#include "core/text.hpp"
#include "plan/planner_sums.hpp"
#include "produce/gpu_producer.hpp"
#include "tileoverlap/core/error.hpp"

namespace tileoverlap::sm90 {

// In place of cute::SM90_TMA_STORE.
struct StoreToOwners : cute::SM90_TMA_STORE {};

inline constexpr int kBoxBytes = 128;  // a row of a box: one line of the swizzle
inline constexpr int kBoxHeights = 8;  // 1, 2, 4, ... 128 rows

struct OwnerMaps {
  cute::TmaDescriptor of_height[kBoxHeights];
};

// Calls visit(run, first, count, row) for each owner's rows among [begin, begin + rows): they are rows [first, first +
// count) of these, and go to `row` of the owner's memory. Rows that nobody owns are padding, and left out.
// The run is looked for among all of them: nothing of ours may lie in static shared memory, in front of CUTLASS's.
template <class Visit>
CUTLASS_DEVICE void for_each_owner(const StoreTask& task, int32_t begin, int32_t rows, Visit visit) {
  const StoredRun* runs = task.runs;
  int32_t number = planner::last_not_above(begin, task.run_count,
                                           [&](int32_t other) { return int64_t{__ldg(&runs[other].row_begin)}; });
  for (; number < task.run_count; ++number) {
    const int4 raw = __ldg(reinterpret_cast<const int4*>(runs + number));
    const StoredRun run = {raw.x, raw.y, raw.z, raw.w};
    const int32_t from = run.row_begin - begin;
    if (from >= rows) return;
    const int32_t first = from > 0 ? from : 0;
    const int32_t end = from + run.row_count < rows ? from + run.row_count : rows;
    if (end > first) {
      visit(run, first, end - first, (run.owner == task.rank ? run.row_begin : run.remote_row) + first - from);
    }
  }
}

// By one thread.
CUTLASS_DEVICE void store_to_owners(const StoreTask& task, const void* shared, int32_t column, int32_t begin,
                                    int32_t rows) {
  const auto* maps = static_cast<const OwnerMaps*>(task.maps);
  for_each_owner(task, begin, rows, [&](const StoredRun& run, int32_t first, int32_t count, int32_t row) {
    while (count > 0) {
      const int32_t height = 31 - __clz(count);
      cute::SM90_TMA_STORE_2D::copy(&maps[run.owner].of_height[height],
                                    static_cast<const std::byte*>(shared) + first * kBoxBytes, column, row);
      first += 1 << height;
      row += 1 << height;
      count -= 1 << height;
    }
  });
}

// Maps of `rows` rows of `n` elements, contiguous, for boxes of every height.
template <class Element>
OwnerMaps encode_owner(void* memory, int64_t rows, int64_t n) {
  OwnerMaps maps;
  const cuuint64_t shape[] = {static_cast<cuuint64_t>(n), static_cast<cuuint64_t>(rows)};
  const cuuint64_t stride[] = {static_cast<cuuint64_t>(n) * sizeof(Element)};
  const cuuint32_t element_stride[] = {1, 1};
  for (int height = 0; height < kBoxHeights; ++height) {
    const cuuint32_t box[] = {kBoxBytes / sizeof(Element), 1u << height};
    const CUresult status = CUTLASS_CUDA_DRIVER_WRAPPER_CALL(cuTensorMapEncodeTiled)(
        &maps.of_height[height], cute::TMA::to_CUtensorMapDataType<Element>(), 2, memory, shape, stride, box,
        element_stride, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
        CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (status != CUDA_SUCCESS) {
      throw Error(
          text("no tensor map of ", rows, " rows of ", n, " elements: CUDA driver error ", static_cast<int>(status)));
    }
  }
  return maps;
}

// An epilogue of CUTLASS with this store in place of its own.
template <class Epilogue>
struct WithStoreToOwners;
template <class Policy, class Tile, class Part, class C, class StrideC, class D, class StrideD, class Fusion,
          class Load, class LayoutC, class LoadToRegisters, class LayoutD, class... Copies>
struct WithStoreToOwners<
    cutlass::epilogue::collective::CollectiveEpilogue<Policy, Tile, Part, C, StrideC, D, StrideD, Fusion, Load, LayoutC,
                                                      LoadToRegisters, cute::SM90_TMA_STORE, LayoutD, Copies...>> {
  using Type =
      cutlass::epilogue::collective::CollectiveEpilogue<Policy, Tile, Part, C, StrideC, D, StrideD, Fusion, Load,
                                                        LayoutC, LoadToRegisters, StoreToOwners, LayoutD, Copies...>;
  // A box is as wide as the part that is stored at a time, and no part is higher than the highest box.
  static_assert(cute::size<1>(Part{}) * sizeof(D) == kBoxBytes && cute::size<0>(Part{}) <= 1 << (kBoxHeights - 1));
};

template <class Epilogue, bool ToOwners>
struct ChooseStore : WithStoreToOwners<Epilogue> {};
template <class Epilogue>
struct ChooseStore<Epilogue, false> {
  using Type = Epilogue;
};

}  // namespace tileoverlap::sm90

namespace cute {

template <class BitsPerCopy, class Auxiliary>
struct Copy_Traits<tileoverlap::sm90::StoreToOwners, BitsPerCopy, Auxiliary>
    : Copy_Traits<SM90_TMA_STORE, BitsPerCopy, Auxiliary> {
  tileoverlap::StoreTask task = {};

  // By all lanes of the warp that stores. One of them stores and, as CUTLASS has it, all commit what they have stored.
  template <class Source, class SourceLayout, class Target, class TargetLayout>
  CUTE_HOST_DEVICE friend constexpr void copy_unpack(const Copy_Traits& traits,
                                                     const Tensor<Source, SourceLayout>& source,
                                                     Tensor<Target, TargetLayout>& target) {
    static_assert(is_smem<Source>::value);
#if defined(__CUDA_ARCH__)  // CUTLASS's copies are for the host, too, where nobody calls this one
    constexpr int kRows =
        decltype(size(source))::value * sizeof(typename Source::value_type) / tileoverlap::sm90::kBoxBytes;
    if (traits.task.runs == nullptr) {
      const Copy_Traits<SM90_TMA_STORE, BitsPerCopy, Auxiliary>& whole = traits;
      copy_unpack(whole, source, target);
    } else if (elect_one_sync()) {
      const auto at = target.data().coord_;
      tileoverlap::sm90::store_to_owners(traits.task, raw_pointer_cast(source.data()), get<0>(at), get<1>(at), kRows);
    }
#endif
  }
};

}  // namespace cute
