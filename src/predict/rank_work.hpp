#pragma once
// What one rank computes and sends, and when its tiles are done.

#include <cstdint>
#include <vector>

#include "tileoverlap/predict/predict.hpp"

namespace tileoverlap {

// What a rank sends in one go, and the tile behind which it can leave.
struct SentPiece {
  int64_t last_tile;  // its place in the order of tiles
  int64_t bytes;
  int32_t peer;
};

struct RankWork {
  int32_t rank = 0;
  GemmShape gemm = {};
  std::vector<int64_t> last_tile = {};  // of each band, in schedule order
  std::vector<SentPiece> pieces = {};   // in the order in which lanes draw them
};

// The query and the rank have been checked.
RankWork work_of(const PredictQuery& query, const RouteCounts& counts, int32_t rank);

inline int32_t sms_of(const PredictQuery& query) { return query.sms > 0 ? query.sms : query.gpu.sms; }

// When tiles are done: all of a wave together, one wave after the other.
class TileClock {
 public:
  // Of a rank of whose SMs `comm_sms` ship beside the GEMM; 0: none.
  TileClock(const PredictQuery& query, const GemmShape& gemm, int32_t comm_sms);
  double done_us(int64_t tile) const { return start_us_ + flag_us_ + static_cast<double>(tile / sms_ + 1) * tile_us_; }
  double end_us() const { return start_us_ + waves_ * tile_us_; }

 private:
  int32_t sms_;
  double start_us_ = 0, flag_us_ = 0, waves_ = 0, tile_us_ = 0;
};

}  // namespace tileoverlap
