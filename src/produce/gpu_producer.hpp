#pragma once
// The experts' GEMM on a GPU, as the executor sees it: one object a compiled kernel, found by chip, type and tile.

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "plan/device_plan.hpp"
#include "tileoverlap/core/dtype.hpp"
#include "tileoverlap/produce/expert_kind.hpp"

namespace tileoverlap {

// When a tile was done, and which CTA did it.
struct TileStamp {
  uint64_t end_ns;  // global timer of the GPU
  uint32_t cta;
  uint32_t padding;
};

// What a kernel does behind each tile. A plain struct: also used inside CUTLASS translation units.
struct PublishTask {
  uint64_t* flags = nullptr;        // [bands, tiles_n]; null: nobody waits for tiles
  const uint64_t* epoch = nullptr;  // the value that marks a tile of this call as complete
  TileStamp* stamps = nullptr;      // [bands, tiles_n]; null: not recorded
  int32_t withheld_band = -1;       // for tests: computed, never published
};

// Rows that the kernel itself stores where they are wanted, instead of all in `output`. A plain struct, as above. All
// pointers are into device memory.
struct StoreTask {
  const StoredRun* runs = nullptr;  // [run_count], by row; null: not this way
  int32_t run_count = 0;            // experts on this rank * world
  int32_t rank = 0;
  const void* maps = nullptr;  // [world], each what encode_owner() has made
};

// The weights of the rank's experts, each [n, k]: one tensor, or a table that GpuProducer::encode_table filled.
struct ExpertWeights {
  const void* tensor = nullptr;  // [experts, n, k], or
  int64_t expert_stride = 0;     // elements; for gated kernels 2 * n * row_stride, else a table is needed
  int64_t row_stride = 0;        // elements
  const void* table = nullptr;   // in device memory, one entry an expert
};

// One launch. Strides in elements; rows of 16-byte multiples, bases 16-byte aligned.
struct GemmTask {
  const PlanHead* head = nullptr;        // in device memory, as everything that depends on the routing
  const ScheduledBand* order = nullptr;  // experts by global id
  int32_t first_expert = 0;              // global id of the rank's first expert
  int32_t experts = 0;                   // on this rank, > 0
  int64_t rows = 0;                      // rows that `input` and `output` have, > 0
  int64_t k = 0, n = 0;                  // `n` is the width of the output (silu_gate: half the weights' rows)
  const void* input = nullptr;           // [rows, k]
  int64_t input_stride = 0;
  ExpertWeights weights = {};
  void* output = nullptr;  // [rows, n]
  int64_t output_stride = 0;
  PublishTask publish = {};
  StoreTask store = {};
  int32_t ctas = 0;  // one an SM, > 0
};

class GpuProducer {
 public:
  virtual ~GpuProducer() = default;
  virtual int32_t tile_m() const = 0;
  virtual int32_t tile_n() const = 0;  // of the output
  virtual DType dtype() const = 0;
  virtual ExpertKind activation() const = 0;   // what is applied to the output; kSingle: nothing
  virtual int32_t min_capability() const = 0;  // 90 for 9.0; `exact` kernels run on that chip only
  virtual bool exact_capability() const = 0;
  virtual std::string name() const = 0;
  // Loads the kernel on the current device, so that run() meets no lazy loading. Throws Error.
  virtual void load() const = 0;
  // Launches only. Throws Error when the launch is refused.
  virtual void launch(const GemmTask& task, cudaStream_t stream) const = 0;
  // One table entry an expert for separately allocated weights, made on the host.
  virtual size_t table_entry_bytes() const = 0;
  virtual void encode_table(std::span<const void* const> weights, int64_t row_stride, int64_t k, int64_t n,
                            std::byte* table) const = 0;
  // Bytes of an owner's entry for StoreTask, made on the host; 0: this kernel cannot store to owners.
  virtual size_t owner_entry_bytes() const { return 0; }
  // `memory`: the owner's, rows of `n` elements, contiguous.
  virtual void encode_owner(std::byte*, int64_t /*rows*/, int64_t /*n*/, std::byte* /*entry*/) const {}
};

// The kernel for a chip of capability `capability` (90 for 9.0), or null. A later chip than a kernel was written for
// gets the most recent kernel that runs there.
const GpuProducer* find_producer(int32_t capability, DType dtype, int32_t tile_m, int32_t tile_n,
                                 ExpertKind activation);
// Tiles {tile_m, tile_n} that find_producer knows for this chip, type and activation.
std::vector<std::pair<int32_t, int32_t>> producer_tiles(int32_t capability, DType dtype,
                                                        ExpertKind activation = ExpertKind::kSingle);

}  // namespace tileoverlap
