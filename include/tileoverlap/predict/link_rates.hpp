#pragma once
// How fast rows go from rank to rank.

#include <cstdint>

namespace tileoverlap {

// Ranks lie in domains of equal size, side by side: [0, domain), [domain, 2 * domain), ... Inside a domain any two
// ranks reach each other's memory (NVLink); between domains there is a network.
struct LinkRates {
  double gbs = 450;  // that a rank sends inside its domain, and that it receives; <= 0: as fast as SMs ship
  double latency_us = 1;
  int32_t domain = 0;       // ranks; 0: all of them
  double network_gbs = 50;  // that a rank sends into the network, and that it receives
  double network_latency_us = 5;
};

}  // namespace tileoverlap
