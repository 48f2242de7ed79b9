#include "execute/sm_share.hpp"

#include <algorithm>

#include "core/device_query.hpp"
#include "core/text.hpp"

namespace tileoverlap {
namespace {

// One SM moves 50 GB/s inside an H200, 34 to 42 beside the GEMM, and costs the GEMM its share: with one in fourteen the
// return keeps up with the GEMM of the shapes measured, and more SMs cost more than they bring.
constexpr int32_t kSmsPerCommSm = 14;

}  // namespace

SmShare share_of(const CudaOptions& cuda, int32_t device, int32_t ranks_on_device) {
  SmShare share{.device_sms = sms_of(device), .sms = cuda.sms, .comm_sms = 0};
  if (share.sms == 0) share.sms = share.device_sms / std::max(1, ranks_on_device);
  share.comm_sms = cuda.comm_sms > 0 ? cuda.comm_sms : std::max(1, share.sms / kSmsPerCommSm);
  if (share.sms > share.device_sms) {
    throw InvalidArgument(text("sms = ", share.sms, " but cuda:", device, " has ", share.device_sms, " SMs"));
  }
  // A kernel that waits and the GEMM it waits for run side by side, so both must fit.
  if (share.producer_sms() < 1) {
    throw InvalidArgument(text("a rank needs at least one SM for the GEMM beside comm_sms = ", share.comm_sms,
                               ", it has ", share.sms, " of the ", share.device_sms, " SMs of cuda:", device,
                               ranks_on_device > 1 ? text(", which ", ranks_on_device, " ranks share") : ""));
  }
  return share;
}

}  // namespace tileoverlap
