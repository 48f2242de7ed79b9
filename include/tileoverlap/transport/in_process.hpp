#pragma once
// W ranks inside one process, on the CPU.

#include <memory>

#include "tileoverlap/transport/transport.hpp"

namespace tileoverlap {

// Makes the transports of all ranks of a new world; element r is rank r's. They share the world's state, which lives
// as long as any of them or any memory allocated through them. Errors: InvalidArgument unless world >= 1.
TILEOVERLAP_API std::vector<std::shared_ptr<Transport>> make_in_process_world(int32_t world);

}  // namespace tileoverlap
