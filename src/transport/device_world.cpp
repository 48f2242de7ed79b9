#include "tileoverlap/transport/device_world.hpp"

#include <algorithm>
#include <cstdlib>
#include <set>
#include <utility>

#include "core/cuda_objects.hpp"
#include "core/text.hpp"
#include "transport/in_process_world.hpp"

namespace tileoverlap {
namespace {

// At least 1.
int32_t count_devices() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaSuccess && count > 0) return count;
  int driver = 0;
  cuda_ignore(cudaDriverGetVersion(&driver));  // 0: none; what the runtime says then is that it is too old
  cuda_check(status, driver == 0 ? "no CUDA device can be used, since no CUDA driver is installed"
                                 : "no CUDA device can be used");
  throw Error("no CUDA device can be used: there are 0 devices");
}

void check_devices(const std::vector<int32_t>& devices) {
  if (devices.empty()) throw InvalidArgument("devices must name one device a rank, got none");
  for (size_t rank = 0; rank < devices.size(); ++rank) {
    if (devices[rank] >= 0) continue;
    throw InvalidArgument(text("the device of rank ", rank, " must be at least 0, got ", devices[rank]));
  }
  const int32_t count = count_devices();
  for (size_t rank = 0; rank < devices.size(); ++rank) {
    if (devices[rank] < count) continue;
    throw InvalidArgument(text("the device of rank ", rank, " must lie in ", range_text(0, count), ", got ",
                               devices[rank], ": this process sees ", count, count == 1 ? " device" : " devices"));
  }
}

void check_peer_access(int32_t from, int32_t to) {
  int can = 0;
  cuda_check(cudaDeviceCanAccessPeer(&can, from, to),
             text("cudaDeviceCanAccessPeer from cuda:", from, " to cuda:", to));
  if (can != 0) return;
  throw InvalidArgument(text("cuda:", from, " cannot reach the memory of cuda:", to,
                             " (no peer access): their ranks cannot be of one world"));
}

void enable_peer_access(int32_t from, int32_t to) {
  const DeviceGuard guard(from);
  const cudaError_t status = cudaDeviceEnablePeerAccess(to, 0);
  if (status == cudaErrorPeerAccessAlreadyEnabled) {
    (void)cudaGetLastError();  // somebody else's merit, no error
    return;
  }
  cuda_check(status, text("cudaDeviceEnablePeerAccess from cuda:", from, " to cuda:", to));
}

// CUDA makes each launch wait until its kernel has ended.
bool launches_block() {
  const char* value = std::getenv("CUDA_LAUNCH_BLOCKING");
  return value != nullptr && std::string(value) != "0" && std::string(value) != "";
}

template <class Visit>
void for_each_pair(const std::set<int32_t>& devices, Visit visit) {
  for (const int32_t from : devices) {
    for (const int32_t to : devices) {
      if (from != to) visit(from, to);
    }
  }
}

std::shared_ptr<std::byte> allocate_on(int32_t device, int32_t rank, size_t bytes) {
  try {
    // A null part would read as one that is not there yet.
    auto memory = std::make_shared<DeviceBytes>(device, std::max<size_t>(bytes, 1));
    return {memory, memory->data()};
  } catch (const Error& error) {
    throw Error(text("rank ", rank, " cannot allocate ", bytes, " bytes of symmetric memory: ", error.what()));
  }
}

}  // namespace

std::vector<std::shared_ptr<Transport>> make_device_world(const std::vector<int32_t>& devices) {
  check_devices(devices);
  const std::set<int32_t> different(devices.begin(), devices.end());
  for_each_pair(different, check_peer_access);
  for_each_pair(different, enable_peer_access);
  std::vector<DLDevice> places;
  for (const int32_t device : devices) places.push_back({kDLCUDA, device});
  const auto allocate = [devices](int32_t rank, size_t bytes) {
    return allocate_on(devices[static_cast<size_t>(rank)], rank, bytes);
  };
  return make_world_transports("DeviceTransport", std::move(places), allocate, launches_block());
}

}  // namespace tileoverlap
