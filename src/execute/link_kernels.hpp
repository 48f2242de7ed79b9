#pragma once
// The kernels of a call that reach peers, as one table: the library has one for peers whose memory is mapped, NVSHMEM's
// plugin brings another.

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string_view>

#include "consume/ship_rows.hpp"
#include "dispatch/push_rows.hpp"
#include "execute/call_kernels.hpp"
#include "plan/plan_call.hpp"
#include "routing/device_vote.hpp"

namespace tileoverlap {

// Each launches on `stream` and returns; throws Error where CUDA does not launch. Waits on the device are bounded, see
// DeviceWatch. The small kernels have one CTA each, so that waiting never fills the GPU.
struct LinkKernels {
  // Rows and messages must leave from this rank's part: see WorkspaceLayout::output and outgoing.
  bool sources_in_part;
  void (*load)(bool has_dispatch);

  // Marks the rank's part as ready, with the epoch from which credits count. By the host, before any call.
  void (*open_session)(const DeviceWorld& world, uint64_t first_epoch, cudaStream_t stream);
  // Tells the peers, when the host lets go of the session, that nothing more will come from this rank.
  void (*close_session)(const DeviceWorld& world, cudaStream_t stream);

  // Advances the epoch. The first call of a session meets the peers (bounded by the limit) and compares terms with
  // them.
  void (*begin_call)(const DeviceWorld& world, CallStamps* stamps, cudaStream_t stream);
  void (*cast_counts)(const CountsVote& vote, cudaStream_t stream);
  // `reason` is cut to Status::kLongestRefusal bytes.
  void (*cast_refusal)(const DeviceWorld& world, std::string_view reason, cudaStream_t stream);
  // A refused call gives an empty plan, and the host learns of the refusal through Status.
  void (*plan_call)(const PlanCallTask& task, cudaStream_t stream);
  // The rows are not counted at the peers yet.
  void (*push_rows)(const PushTask& task, int32_t sms, cudaStream_t stream);
  // Counts at each peer, in this rank's `word` of its part, what kernels before have put there: `rows` [world], in
  // device memory. Behind push_rows, and behind a GEMM that stores rows to their owners.
  void (*count_sent)(const DeviceWorld& world, Word word, const int64_t* rows, int64_t row_bytes, cudaStream_t stream);
  void (*await_peers)(const AwaitTask& task, cudaStream_t stream);
  // `sms` > 0.
  void (*ship_rows)(const ShipTask& task, int32_t sms, cudaStream_t stream);
  // Grants the peers their credits: this rank's staging is free again.
  void (*finish_call)(const FinishTask& task, cudaStream_t stream);
};

// For peers that are all mapped.
const LinkKernels& peer_kernels();

}  // namespace tileoverlap
