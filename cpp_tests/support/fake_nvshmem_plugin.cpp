// A plugin for tests of how one is loaded: built with a newer NVSHMEM than the one that is there, or of another table.

#include "transport/nvshmem/plugin.hpp"

extern "C" __attribute__((visibility("default"))) const tileoverlap::NvshmemPlugin* tileoverlap_nvshmem_plugin(
    uint32_t version) {
  static const tileoverlap::NvshmemPlugin plugin = [] {
    tileoverlap::NvshmemPlugin made{};
    made.built = {3, 9, 0};
    made.host_version = [] { return tileoverlap::NvshmemVersion{3, 4, 5}; };
    return made;
  }();
  return version == tileoverlap::kNvshmemPluginVersion + TILEOVERLAP_FAKE_AGE ? &plugin : nullptr;
}
