#pragma once
// What the consumer on a GPU is told: it ships finished rows to their owners while the GEMM is running.

#include <cstdint>

#include "execute/device_world.hpp"
#include "plan/device_plan.hpp"

namespace tileoverlap {

// When a piece's bands were there, and its copy: global timer, ns.
struct PieceStamp {
  uint64_t wait_begin_ns, wait_end_ns, copy_begin_ns, copy_end_ns;
  uint32_t lane, padding;  // of all lanes of the consumer
};

// Disorder for tests: changes when and in which order pieces go, never what arrives.
struct ShipDisorder {
  uint64_t seed = 0;         // != 0: pieces are taken in another order in each call
  int32_t max_delay_us = 0;  // > 0: a random wait up to this in front of each copy
};

struct ShipTask {
  DeviceWorld world;
  DevicePlan plan;
  const uint64_t* flags;  // [bands, tiles_n]; null: all rows are there, nothing is waited for
  int32_t tiles_n;
  const std::byte* output;
  int64_t row_bytes;
  PieceStamp* stamps;  // [pieces]; null: not recorded
  ShipDisorder disorder;
};

}  // namespace tileoverlap
