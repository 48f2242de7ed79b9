#include "transport/nvshmem/load_plugin.hpp"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <tuple>
#include <utility>

#include "core/text.hpp"
#include "tileoverlap/core/error.hpp"

namespace tileoverlap {
namespace {

constexpr const char* kHostLibrary = "libnvshmem_host.so.3";
constexpr const char* kPluginLibrary = "libtileoverlap_nvshmem.so";

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// The folder that this library lies in; empty where it is part of the program.
std::string own_folder() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&own_folder), &info) == 0 || info.dli_fname == nullptr) return "";
  return std::filesystem::path(info.dli_fname).parent_path().string();
}

// What was tried, for the error.
class Search {
 public:
  // Null: remembered why.
  void* open(const std::string& path, const std::string& source, int flags) {
    void* handle = dlopen(path.c_str(), flags);
    if (handle != nullptr) return handle;
    const char* why = dlerror();
    looked_ += text(looked_.empty() ? "" : "; ", source, " (", why == nullptr ? path : why, ")");
    return nullptr;
  }
  const std::string& looked() const { return looked_; }

 private:
  std::string looked_;
};

// The process may hold one NVSHMEM only, so one that is there is taken. Global: NVSHMEM's own plugins look for it.
void load_host_library(const std::vector<std::string>& libraries) {
  if (dlopen(kHostLibrary, RTLD_NOW | RTLD_NOLOAD) != nullptr) return;
  std::vector<std::pair<std::string, std::string>> places;  // source, path
  const auto in = [](const std::string& folder) { return text(folder, "/", kHostLibrary); };
  if (const std::string root = environment("NVSHMEM_ROOT"); !root.empty()) {
    places.emplace_back("NVSHMEM_ROOT", in(root + "/lib"));
    places.emplace_back("NVSHMEM_ROOT", in(root + "/lib64"));
  }
  for (const std::string& folder : libraries) places.emplace_back("given folder", in(folder));
  if (const std::string folder = own_folder(); !folder.empty()) {
    // A wheel's neighbours: site-packages/tileoverlap/lib and site-packages/nvidia/nvshmem/lib.
    for (const char* up : {"/..", "/../.."}) {
      places.emplace_back("site-packages", in(folder + up + "/nvidia/nvshmem/lib"));
    }
  }
  places.emplace_back("system", kHostLibrary);
  Search search;
  for (const auto& [source, path] : places) {
    if (source != "system" && !std::filesystem::exists(path)) {
      continue;
    }
    if (search.open(path, source, RTLD_NOW | RTLD_GLOBAL) != nullptr) return;
  }
  std::string names;
  for (const auto& [source, path] : places) names += text(names.empty() ? "" : ", ", source, ": ", path);
  throw Error(text("NVSHMEM was not found: looked for ", names, "; ", search.looked(),
                   ". Install it (pip install nvidia-nvshmem-cu13, or -cu12 for CUDA 12) or set NVSHMEM_ROOT"));
}

const NvshmemPlugin& load_plugin() {
  const std::string named = environment("TILEOVERLAP_NVSHMEM_PLUGIN");
  const std::string folder = own_folder();
  Search search;
  void* handle = nullptr;
  if (!named.empty()) {
    handle = search.open(named, "TILEOVERLAP_NVSHMEM_PLUGIN", RTLD_NOW | RTLD_LOCAL);
  } else {
    if (!folder.empty())
      handle = search.open(folder + "/" + kPluginLibrary, "beside this library", RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) handle = search.open(kPluginLibrary, "system", RTLD_NOW | RTLD_LOCAL);
  }
  if (handle == nullptr) {
    throw Error(text("the NVSHMEM plugin ", kPluginLibrary, " cannot be loaded: ", search.looked(),
                     ". Was this library built with TILEOVERLAP_NVSHMEM?"));
  }
  auto* function = reinterpret_cast<NvshmemPluginFunction>(dlsym(handle, kNvshmemPluginSymbol));
  if (function == nullptr) {
    throw Error(
        text("the NVSHMEM plugin ", kPluginLibrary, " is none of this library: it has no ", kNvshmemPluginSymbol));
  }
  const NvshmemPlugin* plugin = function(kNvshmemPluginVersion);
  if (plugin == nullptr) {
    throw Error(text("the NVSHMEM plugin ", kPluginLibrary, " is of another version of this library (its table is not ",
                     kNvshmemPluginVersion, ")"));
  }
  return *plugin;
}

}  // namespace

std::string version_text(const NvshmemVersion& version) {
  return text(version.major, ".", version.minor, ".", version.patch);
}

// NVSHMEM's promise: a host library serves device libraries of its own major version that are not newer.
void check_nvshmem_versions(const NvshmemVersion& built, const NvshmemVersion& host) {
  const auto rest = [](const NvshmemVersion& version) { return std::tuple(version.minor, version.patch); };
  if (built.major == host.major && rest(built) <= rest(host)) return;
  throw Error(text("NVSHMEM ", version_text(host), " is loaded in this process, but this library was built with ",
                   version_text(built), ": it needs ", built.major, ".x from that version on"));
}

const NvshmemPlugin& load_nvshmem_plugin(const std::vector<std::string>& libraries) {
  static std::mutex mutex;
  static const NvshmemPlugin* loaded = nullptr;
  const std::scoped_lock lock(mutex);
  if (loaded == nullptr) {
    load_host_library(libraries);
    const NvshmemPlugin& plugin = load_plugin();
    check_nvshmem_versions(plugin.built, plugin.host_version());
    loaded = &plugin;
  }
  return *loaded;
}

}  // namespace tileoverlap
