#include "predict/ship_model.hpp"

#include <algorithm>
#include <functional>
#include <limits>
#include <queue>
#include <utility>
#include <vector>

namespace tileoverlap {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr double kBytesPerUs = 1e3;  // of one GB/s

// The earliest first; of equal ones the first piece, so that results do not depend on the heap.
using Entry = std::pair<double, size_t>;
using Earliest = std::priority_queue<Entry, std::vector<Entry>, std::greater<>>;

// Pieces on their way all move at one rate, so each ends when `moved`, which one of them has moved since the start of
// time, has grown by its bytes: no piece is looked at before its turn.
class Shipping {
 public:
  Shipping(std::span<const ShipPiece> pieces, const ShipRates& rates, std::span<ShipTimes> times)
      : pieces_(pieces), rates_(rates), times_(times), free_(rates.lanes) {}

  void run() {
    draw();
    while (!waiting_.empty() || !moving_.empty()) {
      begin_ready();
      const double rate = moving_.empty() ? 0 : lane_rate();
      const double piece_end = moving_.empty() ? kNever : now_ + (moving_.top().first - moved_) / rate;
      const double next_ready = waiting_.empty() ? kNever : waiting_.top().first;
      const double rates_change = now_ < rates_.alone_from_us ? rates_.alone_from_us : kNever;
      const double next = std::min({piece_end, next_ready, rates_change});
      if (next == piece_end && !moving_.empty()) {
        end_piece(next);
      } else {
        moved_ += rate * (next - now_);
        now_ = next;
      }
    }
  }

 private:
  // Bytes a microsecond, of each lane that moves rows.
  double lane_rate() const {
    const double sms = now_ < rates_.alone_from_us ? rates_.beside_gbs : rates_.alone_gbs;
    const double shared = std::min(sms, rates_.link_gbs) / static_cast<double>(moving_.size());
    return kBytesPerUs * std::min(rates_.lane_gbs, shared);
  }

  void draw() {
    for (; free_ > 0 && next_ < pieces_.size(); ++next_, --free_) waiting_.emplace(pieces_[next_].ready_us, next_);
  }

  void begin_ready() {
    while (!waiting_.empty() && waiting_.top().first <= now_) {
      const size_t piece = waiting_.top().second;
      waiting_.pop();
      times_[piece].begin_us = now_;
      if (!pieces_[piece].over_network) {
        moving_.emplace(moved_ + pieces_[piece].bytes, piece);
        continue;
      }
      network_free_ = std::max(network_free_, now_) + pieces_[piece].bytes / (kBytesPerUs * rates_.network_gbs);
      times_[piece].end_us = network_free_;
      ++free_;
      draw();
    }
  }

  void end_piece(double when) {
    now_ = when;
    moved_ = moving_.top().first;
    times_[moving_.top().second].end_us = now_;
    moving_.pop();
    ++free_;
    draw();
  }

  std::span<const ShipPiece> pieces_;
  const ShipRates& rates_;
  std::span<ShipTimes> times_;
  Earliest waiting_;  // drawn, by the time at which they are ready
  Earliest moving_;   // by what `moved_` will be at their end
  size_t next_ = 0;
  int32_t free_;
  double now_ = 0, moved_ = 0, network_free_ = 0;
};

}  // namespace

void ship(std::span<const ShipPiece> pieces, const ShipRates& rates, std::span<ShipTimes> times) {
  Shipping(pieces, rates, times).run();
}

}  // namespace tileoverlap
