#pragma once
// The sm_90a kernel's types: CUTLASS's collectives with our order, loads and flags, as one ordinary GEMM.
//
// Rows and outputs are flat tensors whose batch stride is a static zero, so that the expert index of a tile touches
// nothing but the weights, and no tensor map is ever rewritten.

#include "cute/tensor.hpp"
#include "cutlass/cutlass.h"
#include "cutlass/epilogue/collective/collective_builder.hpp"
#include "cutlass/epilogue/thread/activation.h"
#include "cutlass/gemm/collective/collective_builder.hpp"
#include "cutlass/gemm/dispatch_policy.hpp"

#include "produce/sm90/expert_mainloop.hpp"
#include "produce/sm90/planned_scheduler.hpp"
#include "produce/sm90/publish_epilogue.hpp"

// Behind the scheduler's selector, which it uses.
#include "cutlass/gemm/kernel/gemm_universal.hpp"

namespace tileoverlap::sm90 {

using FlatStride = cute::Stride<int64_t, cute::_1, cute::Int<0>>;  // rows, columns, experts
using WeightStride = cute::Stride<int64_t, cute::_1, int64_t>;     // rows, columns, matrices
inline constexpr int kVectorElements = 8;                          // 16 bytes of a 2-byte type

// Two warpgroups share a tile, or take turns with a tile each.
enum class Teamwork { kCooperative, kPingpong };

template <class Element, int TileM, int TileN, Teamwork Team, ExpertKind Activation>
struct ExpertGemm {
  static constexpr bool kGated = Activation == ExpertKind::kSiluGate;
  static constexpr int kParts = kGated ? 2 : 1;
  static constexpr int kTileM = TileM, kOutputTileN = TileN / kParts;
  using ElementType = Element;
  using Cluster = cute::Shape<cute::_1, cute::_1, cute::_1>;
  using TileK = cute::Int<128 / sizeof(Element)>;  // one swizzle atom
  using Tile = cute::Shape<cute::Int<TileM>, cute::Int<TileN>, TileK>;
  using OutputTile = cute::Shape<cute::Int<TileM>, cute::Int<kOutputTileN>, TileK>;
  static constexpr bool kCooperative = Team == Teamwork::kCooperative;
  using MainSchedule = std::conditional_t<kCooperative, cutlass::gemm::KernelTmaWarpSpecializedCooperative,
                                          cutlass::gemm::KernelTmaWarpSpecializedPingpong>;
  using EpilogueSchedule = std::conditional_t<kCooperative, cutlass::epilogue::TmaWarpSpecializedCooperative,
                                              cutlass::epilogue::TmaWarpSpecialized>;
  using Arch = cutlass::arch::Sm90;
  using Class = cutlass::arch::OpClassTensorOp;

  using Fusion = std::conditional_t<
      Activation == ExpertKind::kGelu,
      cutlass::epilogue::fusion::LinCombEltAct<cutlass::epilogue::thread::GELU, Element, float, void>,
      cutlass::epilogue::fusion::LinearCombination<Element, float, void>>;
  // What is returned may be stored to its owners: parts as wide as one line of the swizzle.
  static constexpr bool kStoresToOwners = Activation == ExpertKind::kSingle;
  using Part =
      std::conditional_t<kStoresToOwners,
                         cute::Shape<cute::Int<kCooperative ? 128 : 64>, cute::Int<kBoxBytes / sizeof(Element)>>,
                         cutlass::epilogue::collective::EpilogueTileAuto>;
  using BuiltEpilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
      Arch, Class, OutputTile, Cluster, Part, float, float, void, FlatStride, kVectorElements, Element, FlatStride,
      kVectorElements, EpilogueSchedule, Fusion>::CollectiveOp;
  using EpilogueBase = typename ChooseStore<BuiltEpilogue, kStoresToOwners>::Type;

  template <class TileShape>
  using MainBase = typename cutlass::gemm::collective::CollectiveBuilder<
      Arch, Class, Element, FlatStride, kVectorElements, Element, WeightStride, kVectorElements, float, TileShape,
      Cluster,
      cutlass::gemm::collective::StageCountAutoCarveout<static_cast<int>(sizeof(typename EpilogueBase::SharedStorage))>,
      MainSchedule>::CollectiveOp;
  using Mainloop = ExpertMainloop<MainBase<Tile>, kParts>;
  using Epilogue =
      std::conditional_t<kGated, GatedEpilogue<EpilogueBase, OutputTile, typename MainBase<OutputTile>::TiledMma>,
                         PublishEpilogue<EpilogueBase>>;
  using Kernel =
      cutlass::gemm::kernel::GemmUniversal<cute::Shape<int, int, int, int>, Mainloop, Epilogue, PlannedTiles>;
};

}  // namespace tileoverlap::sm90
