#pragma once
// Finds NVSHMEM and the plugin that uses it, once in a process.

#include <string>
#include <vector>

#include "transport/nvshmem/plugin.hpp"

namespace tileoverlap {

// Throws Error: where both were looked for and what was wrong there, or which versions do not match. `libraries`: more
// folders to look for NVSHMEM's host library in. Thread safe; what has been loaded stays.
const NvshmemPlugin& load_nvshmem_plugin(const std::vector<std::string>& libraries);

std::string version_text(const NvshmemVersion& version);
// Throws Error unless a host library of version `host` serves a device library of version `built`.
void check_nvshmem_versions(const NvshmemVersion& built, const NvshmemVersion& host);

}  // namespace tileoverlap
