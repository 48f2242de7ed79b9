#include "execute/device_timeline.hpp"

#include <algorithm>
#include <numeric>
#include <vector>

#include "core/text.hpp"

namespace tileoverlap {
namespace {

int64_t ns(uint64_t stamp) { return static_cast<int64_t>(stamp); }

// A lane turns to its next piece while the rows of the last one still land. So that a worker does one thing at a time,
// a copy is taken to end there; a lane's last copy ends when its rows have landed.
std::vector<uint64_t> ends_of_copies(std::span<const PieceStamp> shipped, int32_t lanes) {
  std::vector<size_t> latest_first(shipped.size());
  std::iota(latest_first.begin(), latest_first.end(), size_t{0});
  std::sort(latest_first.begin(), latest_first.end(),
            [&](size_t a, size_t b) { return shipped[a].wait_begin_ns > shipped[b].wait_begin_ns; });
  std::vector<uint64_t> turned_away(static_cast<size_t>(lanes), ~uint64_t{0});
  std::vector<uint64_t> ends(shipped.size());
  for (const size_t i : latest_first) {
    uint64_t& next_begin = turned_away[shipped[i].lane];
    ends[i] = std::min(shipped[i].copy_end_ns, next_begin);
    next_begin = shipped[i].wait_begin_ns;
  }
  return ends;
}

}  // namespace

Timeline device_timeline(int32_t rank, int32_t tiles_n, int32_t producer_ctas, int32_t consumer_lanes,
                         std::span<const ScheduledBand> order, std::span<const Piece> pieces,
                         std::span<const TileStamp> tiles, std::span<const PieceStamp> shipped,
                         const CallStamps& call) {
  Timeline timeline;
  timeline.worker_names.push_back("call");
  for (int32_t cta = 0; cta < producer_ctas; ++cta) timeline.worker_names.push_back(text("producer ", cta));
  for (int32_t lane = 0; lane < consumer_lanes; ++lane) timeline.worker_names.push_back(text("consumer ", lane));

  struct Tile {
    int32_t band;
    TileStamp stamp;
  };
  std::vector<Tile> done;
  for (const ScheduledBand& entry : order) {
    for (int32_t tile = 0; tile < tiles_n; ++tile) {
      done.push_back({entry.band, tiles[static_cast<size_t>(element_offset(entry.band, tiles_n, tile))]});
    }
  }
  std::sort(done.begin(), done.end(), [](const Tile& a, const Tile& b) { return a.stamp.end_ns < b.stamp.end_ns; });
  std::vector<int64_t> free_since(static_cast<size_t>(producer_ctas), ns(call.begin_ns));
  for (const Tile& tile : done) {
    int64_t& begin = free_since[tile.stamp.cta];
    timeline.events.push_back({.span = Span::kTile,
                               .rank = rank,
                               .worker = 1 + static_cast<int32_t>(tile.stamp.cta),
                               .item = tile.band,
                               .begin_ns = begin,
                               .end_ns = ns(tile.stamp.end_ns)});
    begin = ns(tile.stamp.end_ns);
  }
  if (consumer_lanes == 0) pieces = {};
  const std::vector<uint64_t> copied = ends_of_copies(shipped.first(pieces.size()), consumer_lanes);
  for (size_t i = 0; i < pieces.size(); ++i) {
    const PieceStamp& stamp = shipped[i];
    const auto add = [&](Span span, uint64_t begin, uint64_t end) {
      timeline.events.push_back({.span = span,
                                 .rank = rank,
                                 .worker = 1 + producer_ctas + static_cast<int32_t>(stamp.lane),
                                 .item = pieces[i].segment,
                                 .peer = pieces[i].peer,
                                 .begin_ns = ns(begin),
                                 .end_ns = ns(end)});
    };
    add(Span::kBandWait, stamp.wait_begin_ns, stamp.wait_end_ns);
    add(Span::kCreditWait, stamp.wait_end_ns, stamp.copy_begin_ns);
    add(Span::kCopy, stamp.copy_begin_ns, copied[i]);
  }
  const auto add_call = [&](Span span, uint64_t begin, uint64_t end) {
    timeline.events.push_back({.span = span, .rank = rank, .begin_ns = ns(begin), .end_ns = ns(end)});
  };
  if (call.end_ns != 0) {
    add_call(Span::kArrivalWait, call.arrival_wait_begin_ns, call.arrival_wait_end_ns);
    add_call(Span::kReduce, call.arrival_wait_end_ns, call.end_ns);
  }
  return timeline;
}

}  // namespace tileoverlap
