#include "tileoverlap/transport/in_process.hpp"

#include <new>

#include "core/text.hpp"
#include "core/zeroed_bytes.hpp"
#include "transport/in_process_world.hpp"

namespace tileoverlap {
namespace {

std::shared_ptr<std::byte> allocate_part(int32_t rank, size_t bytes) {
  try {
    return zeroed_bytes(bytes);
  } catch (const std::bad_alloc&) {
    throw Error(text("rank ", rank, " cannot allocate ", bytes, " bytes of shared memory"));
  }
}

}  // namespace

std::vector<std::shared_ptr<Transport>> make_in_process_world(int32_t world) {
  if (world < 1) throw InvalidArgument(text("world must be at least 1, got ", world));
  return make_world_transports("InProcessTransport", std::vector<DLDevice>(static_cast<size_t>(world), {kDLCPU, 0}),
                               allocate_part);
}

}  // namespace tileoverlap
