#pragma once
// Time stamps of a call on a GPU, as the library's timeline.

#include <span>

#include "consume/ship_rows.hpp"
#include "execute/call_kernels.hpp"
#include "plan/device_plan.hpp"
#include "produce/gpu_producer.hpp"
#include "tileoverlap/core/timeline.hpp"

namespace tileoverlap {

// Workers are the call itself (0), then the CTAs of the GEMM, then those of the consumer. A tile is taken to begin
// where its CTA ended the one before. Without lanes there is no consumer: rows land with their tiles. A call without an
// end has no arrivals. Tiles and pieces that the plan does not
// have are left out.
Timeline device_timeline(int32_t rank, int32_t tiles_n, int32_t producer_ctas, int32_t consumer_lanes,
                         std::span<const ScheduledBand> order, std::span<const Piece> pieces,
                         std::span<const TileStamp> tiles, std::span<const PieceStamp> shipped, const CallStamps& call);

}  // namespace tileoverlap
