#pragma once
// CUTLASS extension: what a tile loads. Rows are one flat [rows, k] tensor; the expert picks the weights.

#include "cute/atom/copy_traits_sm90_tma.hpp"
#include "cute/tensor.hpp"
#include "cutlass/cutlass.h"
#include "cutlass/gemm/collective/collective_builder.hpp"

namespace tileoverlap::sm90 {

using TensorMap = cute::TmaDescriptor;

// Experts' weights in one tensor, or in a table of prepared tensor maps: one a matrix. Parts is 1, or 2 where a tile
// takes its first half of weight rows from a gate matrix and its second from an up matrix; matrices are then numbered
// gate, up, gate, up, ... Base is the collective mainloop that CUTLASS builds, for one CTA a cluster.
template <class Base, int Parts>
class ExpertMainloop : public Base {
 public:
  using typename Base::MainloopPipeline;
  using typename Base::PipelineState;
  using typename Base::TensorStorage;
  using typename Base::TileShape;
  using Cluster = typename Base::DispatchPolicy::ClusterShape;
  static_assert(cute::size(Cluster{}) == 1);

  // A part of a tile's weights: all of them, or one half.
  using PartRows = decltype(cute::shape<1>(TileShape{}) / cute::Int<Parts>{});
  using PartTile = decltype(cute::make_shape(cute::shape<0>(TileShape{}), PartRows{}, cute::shape<2>(TileShape{})));
  using PartLayout = decltype(cute::tile_to_shape(
      typename Base::SmemLayoutAtomB{}, cute::make_shape(PartRows{}, cute::shape<2>(TileShape{}), cute::Int<1>{})));
  // All parts of all stages: a tile's parts lie one behind the other, as its rows would.
  using PartsLayout = decltype(cute::tile_to_shape(
      typename Base::SmemLayoutAtomB{},
      cute::make_shape(PartRows{}, cute::shape<2>(TileShape{}), cute::Int<Base::DispatchPolicy::Stages * Parts>{})));

  using StrideB = typename Base::StrideB;
  using TmaB = decltype(cute::make_tma_copy_B_sm90(
      typename Base::GmemTiledCopyB{},
      cute::make_tensor(static_cast<typename Base::InternalElementB const*>(nullptr),
                        cute::repeat_like(StrideB{}, int32_t(0)), StrideB{}),
      PartLayout{}(cute::_, cute::_, cute::Int<0>{}), PartTile{}, Cluster{}));

  struct Arguments : Base::Arguments {
    const TensorMap* table = nullptr;  // in device memory; null: `ptr_B` is the tensor
    int32_t matrices = 0;              // experts * Parts
  };
  struct Params : Base::Params {
    TmaB tma_part;
    const TensorMap* table;
    int32_t matrices;
  };

  // `problem` is (rows, n, k, experts) with n as wide as one part's matrix.
  template <class ProblemShape>
  static Params to_underlying_arguments(const ProblemShape& problem, const Arguments& arguments, void* workspace) {
    Params params{Base::to_underlying_arguments(problem, arguments, workspace), part_copy(problem, arguments),
                  arguments.table, arguments.matrices};
    return params;
  }

  // The map of one matrix, for the table.
  template <class ProblemShape>
  static TensorMap encode(const ProblemShape& problem, const Arguments& arguments) {
    return *part_copy(problem, arguments).get_tma_descriptor();
  }

  CUTLASS_DEVICE static void prefetch_tma_descriptors(const Params& params) {
    cute::prefetch_tma_descriptor(params.tma_load_a.get_tma_descriptor());
    if (params.table == nullptr) cute::prefetch_tma_descriptor(params.tma_part.get_tma_descriptor());
  }

  template <class ProblemShape>
  CUTLASS_DEVICE auto load_init(const ProblemShape& problem, const Params& params) const {
    using namespace cute;
    const auto [rows, n, k, experts] = problem;
    Tensor input = params.tma_load_a.get_tma_tensor(make_shape(rows, k, experts));
    Tensor weights = params.tma_part.get_tma_tensor(make_shape(n, k, params.matrices));
    return cute::make_tuple(local_tile(input, TileShape{}, make_coord(_, _, _), Step<_1, Underscore, _1>{}),
                            local_tile(weights, PartTile{}, make_coord(_, _, _), Step<Underscore, _1, _1>{}));
  }

  template <class TensorA, class TensorB, class KTileIterator, class BlockCoord>
  CUTLASS_DEVICE void load(const Params& params, MainloopPipeline pipeline, PipelineState write,
                           const cute::tuple<TensorA, TensorB>& inputs, const BlockCoord& coord, KTileIterator k_tile,
                           int k_tiles, int, uint32_t, TensorStorage& storage) {
    using namespace cute;
    if (!cute::elect_one_sync()) return;
    Tensor shared_a = make_tensor(make_smem_ptr(storage.smem_A.data()), typename Base::SmemLayoutA{});
    const auto [m, n, unused, expert] = coord;
    const auto copy_a = params.tma_load_a.get_slice(0);
    const auto copy_b = params.tma_part.get_slice(0);
    Tensor from_a = copy_a.partition_S(get<0>(inputs)(_, _, m, _, expert));
    Tensor to_a = copy_a.partition_D(shared_a);
    Tensor shared_b = make_tensor(make_smem_ptr(storage.smem_B.data()), PartsLayout{});
    Tensor to_b = copy_b.partition_D(shared_b);
    // A map of the table holds one matrix, the kernel's own map all.
    const bool tabled = params.table != nullptr;
    const int32_t first_matrix = static_cast<int32_t>(expert) * Parts;
    const TensorMap* maps[Parts];
    int32_t matrices[Parts];
    CUTLASS_PRAGMA_UNROLL
    for (int part = 0; part < Parts; ++part) {
      maps[part] = tabled ? params.table + first_matrix + part : params.tma_part.get_tma_descriptor();
      matrices[part] = tabled ? 0 : first_matrix + part;
    }
    Tensor weights = get<1>(inputs)(_, _, n, _, _);
    CUTLASS_PRAGMA_NO_UNROLL
    for (; k_tiles > 0; --k_tiles, ++k_tile, ++write) {
      pipeline.producer_acquire(write);
      auto& barrier = *pipeline.producer_get_barrier(write);
      const int stage = write.index();
      copy(params.tma_load_a.with(barrier, 0), from_a(_, _, _, *k_tile), to_a(_, _, _, stage));
      CUTLASS_PRAGMA_UNROLL
      for (int part = 0; part < Parts; ++part) {
        Tensor from_b = copy_b.partition_S(weights(_, _, _, matrices[part]));
        copy(params.tma_part.with(maps[part], barrier, 0), from_b(_, _, _, *k_tile),
             to_b(_, _, _, stage * Parts + part));
      }
    }
  }

 private:
  template <class ProblemShape>
  static TmaB part_copy(const ProblemShape& problem, const Arguments& arguments) {
    using namespace cute;
    const auto [rows, n, k, experts] = problem;
    auto pointer = reinterpret_cast<typename Base::InternalElementB const*>(arguments.ptr_B);
    Tensor weights = make_tensor(pointer, make_layout(make_shape(n, k, arguments.matrices), arguments.dB));
    return make_tma_copy_B_sm90(typename Base::GmemTiledCopyB{}, weights, PartLayout{}(_, _, Int<0>{}), PartTile{},
                                Cluster{});
  }
};

}  // namespace tileoverlap::sm90
