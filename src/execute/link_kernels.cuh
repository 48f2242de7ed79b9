#pragma once
// The table of kernels of one link: see link_kernels.hpp and peer_link.cuh.

#include "consume/ship_rows.cuh"
#include "dispatch/push_rows.cuh"
#include "execute/call_kernels.cuh"
#include "execute/link_kernels.hpp"
#include "plan/plan_call.cuh"
#include "routing/device_vote.cuh"

namespace tileoverlap {

template <class Link>
void load_link_kernels(bool has_dispatch) {
  load_call_kernels<Link>();
  load_ship_rows<Link>();
  if (!has_dispatch) return;
  load_push_rows<Link>();
  load_device_vote<Link>();
  load_plan_call<Link>();
}

template <class Link>
constexpr LinkKernels link_kernels() {
  return {.sources_in_part = Link::kSourcesInPart,
          .load = load_link_kernels<Link>,
          .open_session = open_session<Link>,
          .close_session = close_session<Link>,
          .begin_call = begin_call<Link>,
          .cast_counts = cast_counts<Link>,
          .cast_refusal = cast_refusal<Link>,
          .plan_call = launch_plan_call<Link>,
          .push_rows = push_rows<Link>,
          .count_sent = count_sent<Link>,
          .await_peers = await_peers<Link>,
          .ship_rows = ship_rows<Link>,
          .finish_call = finish_call<Link>};
}

}  // namespace tileoverlap
