#include "execute/link_kernels.cuh"
#include "transport/peer_link.cuh"

namespace tileoverlap {

const LinkKernels& peer_kernels() {
  static constexpr LinkKernels kKernels = link_kernels<PeerLink>();
  return kKernels;
}

}  // namespace tileoverlap
