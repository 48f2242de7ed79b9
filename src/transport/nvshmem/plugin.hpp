#pragma once
// What NVSHMEM's plugin gives the library: a table behind one exported function. The plugin links NVSHMEM, the library
// never does.

#include <cstddef>
#include <cstdint>

namespace tileoverlap {

struct LinkKernels;

struct NvshmemVersion {
  int32_t major, minor, patch;
};

struct NvshmemPlugin {
  static constexpr int32_t kNoWayToPeers = -1;
  NvshmemVersion built;              // of the device library inside the plugin
  NvshmemVersion (*host_version)();  // of the host library in this process
  bool (*is_started)();              // by whomever
  size_t unique_id_bytes;
  int32_t (*make_unique_id)(void* id);  // 0: made
  // Collective. With an id: starts NVSHMEM. Without: joins the one that is started. 0: done; kNoWayToPeers: it can
  // reach none of the ranks' memory, and must not be called again.
  int32_t (*start)(int32_t rank, int32_t world, const void* id);
  void (*finish)();  // collective
  int32_t (*my_pe)();
  int32_t (*pes)();
  void* (*allocate)(size_t bytes);               // collective; null: no memory
  void (*free)(void* memory);                    // collective
  void* (*mapped)(const void* own, int32_t pe);  // null: not mapped
  void (*barrier)();
  const LinkKernels* kernels;
};

// Changes whenever the table does, or what kernels are told.
inline constexpr uint32_t kNvshmemPluginVersion = 3;
inline constexpr const char* kNvshmemPluginSymbol = "tileoverlap_nvshmem_plugin";
using NvshmemPluginFunction = const NvshmemPlugin* (*)(uint32_t version);

}  // namespace tileoverlap
