#pragma once
// The consumer as a queue: lanes that draw pieces in order and share what their SMs and the link can move.

#include <cstdint>
#include <span>

namespace tileoverlap {

struct ShipPiece {
  double ready_us;
  double bytes;
  bool over_network;
};

struct ShipRates {
  int32_t lanes;
  double beside_gbs, alone_gbs;  // of all lanes together, until alone_from_us and from then on
  double alone_from_us;
  double lane_gbs;     // of one lane at most
  double link_gbs;     // of all rows inside the domain
  double network_gbs;  // of all rows that leave it; lanes hand them over and go on
};

struct ShipTimes {
  double begin_us, end_us;
};

// Fills times[i] of pieces[i], which lanes draw in this order.
void ship(std::span<const ShipPiece> pieces, const ShipRates& rates, std::span<ShipTimes> times);

}  // namespace tileoverlap
