#pragma once
// Plans a layer call on the device: waits for all ranks' votes, then makes this rank's plan from their counts.

#include "execute/device_world.hpp"
#include "plan/device_planner.hpp"

namespace tileoverlap {

struct PlanCallTask {
  DeviceWorld world;
  PlannerInput input;  // without counts and refusal, which come with the votes
  PlannerLayout scratch_layout;
  std::byte* scratch;
  DevicePlan plan;
};

}  // namespace tileoverlap
