#pragma once
// Ranks inside one process, wherever their memory lies.

#include <dlpack/dlpack.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tileoverlap/transport/transport.hpp"

namespace tileoverlap {

// Makes one rank's part of an allocation: zeroed, complete on return, not null, freed by the pointer's deleter. Called
// by several ranks' threads at once. Throws Error naming the rank and the bytes.
using PartAllocator = std::function<std::shared_ptr<std::byte>(int32_t rank, size_t bytes)>;

// The transports of all ranks of a new world; element r is rank r's, whose memory lies on devices[r]. `name` is what
// they print as. They share the world's state, which lives as long as any of them or any memory allocated through them.
// `take_turns`: their memory has LaunchTurns.
std::vector<std::shared_ptr<Transport>> make_world_transports(std::string name, std::vector<DLDevice> devices,
                                                              PartAllocator allocate_part, bool take_turns = false);

}  // namespace tileoverlap
