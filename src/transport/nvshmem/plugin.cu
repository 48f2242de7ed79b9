#include "transport/nvshmem/plugin.hpp"

#include <nvshmem.h>
#include <nvshmemx.h>

#include <cstring>

#include "transport/nvshmem/nvshmem_kernels.hpp"

namespace tileoverlap {
namespace {

NvshmemVersion host_version() {
  NvshmemVersion version{};
  nvshmemx_vendor_get_version_info(&version.major, &version.minor, &version.patch);
  return version;
}

int32_t make_unique_id(void* id) {
  nvshmemx_uniqueid_t made = NVSHMEMX_UNIQUEID_INITIALIZER;
  const int status = nvshmemx_get_uniqueid(&made);
  std::memcpy(id, &made, sizeof(made));
  return status;
}

// nvshmemx_init_attr() ends the process where it fails, so this calls what lies below it.
// NVSHMEM says 0 even where it has met its ranks and then finds no way to their memory. It would try again in the next
// call of any kind, and end the process.
int32_t started(int32_t status) {
  if (status != 0) return status;
  return nvshmemx_init_status() == NVSHMEM_STATUS_IS_BOOTSTRAPPED ? NvshmemPlugin::kNoWayToPeers : 0;
}

int32_t start(int32_t rank, int32_t world, const void* id) {
  const nvshmemi_version_t version = {NVSHMEM_VENDOR_MAJOR_VERSION, NVSHMEM_VENDOR_MINOR_VERSION,
                                      NVSHMEM_VENDOR_PATCH_VERSION};
  int provided = 0;
  if (id == nullptr) return started(nvshmemi_init_thread(NVSHMEM_THREAD_SERIALIZED, &provided, 0, nullptr, version));
  nvshmemx_uniqueid_t unique_id;
  std::memcpy(&unique_id, id, sizeof(unique_id));
  nvshmemx_init_attr_t attributes = NVSHMEMX_INIT_ATTR_INITIALIZER;
  const int status = nvshmemx_set_attr_uniqueid_args(rank, world, &unique_id, &attributes);
  if (status != 0) return status;
  return started(
      nvshmemi_init_thread(NVSHMEM_THREAD_SERIALIZED, &provided, NVSHMEMX_INIT_WITH_UNIQUEID, &attributes, version));
}

}  // namespace
}  // namespace tileoverlap

extern "C" __attribute__((visibility("default"))) const tileoverlap::NvshmemPlugin* tileoverlap_nvshmem_plugin(
    uint32_t version) {
  using namespace tileoverlap;
  static const NvshmemPlugin plugin = {
      .built = {NVSHMEM_VENDOR_MAJOR_VERSION, NVSHMEM_VENDOR_MINOR_VERSION, NVSHMEM_VENDOR_PATCH_VERSION},
      .host_version = host_version,
      .is_started =
          [] {
            const int status = nvshmemx_init_status();
            return status != NVSHMEM_STATUS_NOT_INITIALIZED && status != NVSHMEM_STATUS_INVALID;
          },
      .unique_id_bytes = sizeof(nvshmemx_uniqueid_t),
      .make_unique_id = make_unique_id,
      .start = start,
      .finish = [] { nvshmem_finalize(); },
      .my_pe = [] { return static_cast<int32_t>(nvshmem_my_pe()); },
      .pes = [] { return static_cast<int32_t>(nvshmem_n_pes()); },
      .allocate = [](size_t bytes) { return nvshmem_malloc(bytes); },
      .free = [](void* memory) { nvshmem_free(memory); },
      .mapped = [](const void* own, int32_t pe) { return nvshmem_ptr(own, pe); },
      .barrier = [] { nvshmem_barrier_all(); },
      .kernels = &nvshmem_kernels()};
  return version == kNvshmemPluginVersion ? &plugin : nullptr;
}
