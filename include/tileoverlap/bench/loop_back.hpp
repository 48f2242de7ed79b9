#pragma once
// For benchmarks: one rank's operator (GEMM and return), each part launched by itself, on a loop-back link: the rank
// has the whole GPU, and its peers' memory lies on the same one or in the host's.

#include <cstdint>
#include <memory>
#include <string>

#include "tileoverlap/core/api.hpp"
#include "tileoverlap/core/dtype.hpp"
#include "tileoverlap/core/tensor.hpp"
#include "tileoverlap/core/timeline.hpp"
#include "tileoverlap/plan/plan.hpp"

namespace tileoverlap {

// Where peers' memory lies, and so what returned rows cross.
enum class Link : int32_t {
  kHbm,   // on the rank's own GPU
  kPcie,  // in pinned memory of the host
};

// On the rank's GPU, as for Session::run. Borrowed by each call for the work that it launches.
struct LoopBackTensors {
  TensorArg rows;     // [at least plan.rows, k]
  TensorArg weights;  // [experts on the rank, n, k]
  TensorArg output;   // [at least plan.rows, n], written
};

// Not thread safe. Everything but wrong_bytes, timeline and check only launches work on `stream`, an address, and can
// be captured in a graph; all of it belongs to one call that begin() began. Errors: InvalidArgument, DTypeError, and
// Error for what the driver says.
class TILEOVERLAP_API LoopBack {
 public:
  virtual ~LoopBack() = default;
  // A new call: what was published before no longer counts.
  virtual void begin(void* stream) = 0;
  // The GEMM on `sms` SMs; `publish`: with a flag behind each tile.
  virtual void produce(const LoopBackTensors& tensors, int32_t sms, bool publish, void* stream) = 0;
  // The return on `sms` SMs; `wait`: for each band's flags. Without, all rows must be there: a bulk return.
  virtual void ship(const TensorArg& output, int32_t sms, bool wait, void* stream) = 0;
  // Both side by side, as the executor does: the return on `comm_sms` SMs, on a stream of its own, the GEMM on the
  // rest.
  virtual void overlapped(const LoopBackTensors& tensors, int32_t comm_sms, void* stream) = 0;
  // The GEMM on all SMs, which stores rows in their owners' memory itself. `output` keeps the rank's own rows; its
  // first call with an output cannot be captured. Error unless can_store().
  virtual void stored(const LoopBackTensors& tensors, void* stream) = 0;
  // Whether later work stores time stamps. Costs a few stores a tile.
  virtual void record(bool on) = 0;
  // Wait for the GPU. timeline: of the last overlapped call that was recorded, on the GPU's own clock. wrong_bytes:
  // shipped bytes that differ from `output`, of all of them.
  virtual Timeline timeline() = 0;
  virtual int64_t wrong_bytes(const TensorArg& output) = 0;
  // Throws WaitTimeout where a wait has reached its limit of ten seconds. Does not wait.
  virtual void check() = 0;

  virtual int32_t sms() const = 0;            // of the GPU
  virtual int64_t shipped_bytes() const = 0;  // that a call returns to peers
  virtual std::string kernel() const = 0;
  virtual bool can_store() const = 0;  // whether the GPU's GEMM can store rows at their owners
};

// Memory of all peers' staging is allocated here, on cuda:`device` or in the host's memory: as many rows for each peer
// as the plan's busiest owner has copies.
TILEOVERLAP_API std::unique_ptr<LoopBack> make_loop_back(const Plan& plan, DType dtype, int64_t k, int32_t device = 0,
                                                         Link link = Link::kHbm);

}  // namespace tileoverlap
