#include "execute/sm_share.hpp"

#include <algorithm>

#include "core/device_query.hpp"
#include "core/text.hpp"

namespace tileoverlap {
SmShare share_of(const CudaOptions& cuda, int32_t device, int32_t ranks_on_device) {
  SmShare share{.device_sms = sms_of(device), .sms = cuda.sms};
  if (share.sms == 0) share.sms = share.device_sms / std::max(1, ranks_on_device);
  if (share.sms > share.device_sms) {
    throw InvalidArgument(text("sms = ", share.sms, " but cuda:", device, " has ", share.device_sms, " SMs"));
  }
  // A kernel that waits and the GEMM it waits for run side by side, so both must fit.
  const int32_t comm_sms = std::max(1, cuda.comm_sms);
  if (share.sms <= comm_sms) {
    throw InvalidArgument(text("a rank needs at least one SM for the GEMM beside comm_sms = ", comm_sms, ", it has ",
                               share.sms, " of the ", share.device_sms, " SMs of cuda:", device,
                               ranks_on_device > 1 ? text(", which ", ranks_on_device, " ranks share") : ""));
  }
  return share;
}

}  // namespace tileoverlap
