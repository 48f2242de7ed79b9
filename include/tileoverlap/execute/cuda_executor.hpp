#pragma once
// The executor for NVIDIA GPUs: one persistent GEMM a rank that raises a flag for every finished tile, and a small
// persistent kernel on a few SMs that ships finished rows to their owners meanwhile. Or the GEMM stores them there
// itself.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tileoverlap/execute/executor.hpp"

namespace tileoverlap {

// Faults and disorder for tests. The defaults change nothing.
struct CudaFaults {
  uint64_t shuffle_seed = 0;   // != 0: rows are shipped in another order in each call
  int32_t max_delay_us = 0;    // > 0: a random wait up to this in front of each shipment
  int32_t withhold_band = -1;  // >= 0: this rank's band is computed and never published; with Transfer::kStore none is
  bool poison = false;         // fill staging, input rows and outputs with NaN whenever nobody may read them
  uint64_t first_epoch = 0;    // the session's calls are counted from first_epoch + 1 (equal on all ranks)
};

// How overlapped calls return rows. Results are the same, and each rank chooses for itself.
enum class Transfer : int32_t {
  kShip,   // a kernel on `comm_sms` SMs ships finished rows
  kStore,  // the GEMM, on all SMs of the rank, stores rows in the memory of their owners: where all peers' memory is
           // mapped, on GPUs of compute capability 9.0. For links that are faster than the GEMM writes: it waits for
           // them
};

struct CudaOptions {
  // SMs that this rank may use; 0: those of its device, shared evenly among the ranks of the transport's world on it.
  int32_t sms = 0;
  // Of these, SMs that ship rows while the GEMM runs on the others; 0: as many as choose_split()
  // predicts to be fastest for a call of as many tokens, spread evenly over the experts.
  int32_t comm_sms = 0;
  Transfer transfer = Transfer::kShip;
  CudaFaults faults = {};
};

// What a device offers, for messages and reports.
struct CudaDevice {
  int32_t number = 0;
  std::string name;
  int32_t capability = 0;  // 90 for 9.0
  int32_t sms = 0;
  int64_t memory_bytes = 0;
  std::vector<std::pair<int32_t, int32_t>> bfloat16_tiles;  // {tile_m, tile_n} that plans for this device may have
};
// All devices; empty where there is no GPU, no driver, or no CUDA in the library.
TILEOVERLAP_API std::vector<CudaDevice> cuda_devices();
// Why cuda_devices() is empty; empty where it is not.
TILEOVERLAP_API std::string why_no_cuda_device();

// For a transport whose memory lies on a GPU. Sessions take bfloat16 and float16; all tensors must lie on the rank's
// device, with rows that start at multiples of 16 bytes. Work goes to the stream of each call (RunArgs::stream,
// LayerArgs::stream): the call returns when it is launched, `out` is ready when the stream has reached its end, and
// nothing in it waits for the host. The host waits in two cases: in the first call of a session, until all ranks have
// prepared, and when the plans of more than four calls of a session have not reached the GPU yet.
// Ids lie on the GPU and are found bad there. A session skips such copies, as it does -1, and synchronize() throws
// InvalidArgument once; a layer's call is refused on all ranks, as where forward() throws.
// Several ranks on one device need streams that do not queue behind each other: set CUDA_DEVICE_MAX_CONNECTIONS=32
// before the process starts CUDA. Without it they may wait for each other up to the limit. With CUDA_LAUNCH_BLOCKING=1
// ranks of one process need a thread each, since a launch then waits for its kernel.
// Results do not depend on the options. Errors: InvalidArgument, and Error for what the driver says. prepare() throws
// InvalidArgument where it cannot transfer rows as the options say.
TILEOVERLAP_API std::unique_ptr<Executor> make_cuda_executor(std::shared_ptr<Transport> transport,
                                                             const CudaOptions& options = {});

}  // namespace tileoverlap
