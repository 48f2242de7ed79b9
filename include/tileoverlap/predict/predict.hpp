#pragma once
// How long the operator will take, GEMM and return, from the counts alone: tile by tile and piece by piece, but on no
// device.
//
// A rank's tiles are done wave by wave in the order of its schedule. A piece of rows is ready when its bands are; lanes
// of the SMs that ship take pieces in order, wait for them, and share what these SMs and the link can move. Rows for
// other domains are handed to the network, which sends them one after the other. Owners receive what comes for them one
// after the other, too. What that leaves out: anything that happens inside a network, and chance.

#include <cstdint>
#include <span>
#include <vector>

#include "tileoverlap/core/api.hpp"
#include "tileoverlap/plan/options.hpp"
#include "tileoverlap/predict/gpu_rates.hpp"
#include "tileoverlap/predict/link_rates.hpp"
#include "tileoverlap/routing/counts.hpp"
#include "tileoverlap/routing/placement.hpp"

namespace tileoverlap {

struct PredictQuery {
  Placement placement = Placement::even(1, 1);
  int64_t k = 0, n = 0;  // depth, and width of a returned row
  int64_t element_bytes = 2;
  PlanOptions plan = {};
  int32_t sms = 0;  // of each rank; 0: all of its GPU
  GpuRates gpu = {};
  LinkRates link = {};
};

// One rank, from the moment at which its rows are in place. Times in us.
struct RankPrediction {
  int32_t rank = 0;
  double gemm_us = 0;      // the GEMM alone, on all SMs
  double copy_us = 0;      // its return alone, on the SMs that ship
  double gemm_end_us = 0;  // overlapped: when the last tile is done
  double sent_us = 0;      // when the last row that it sends has left; 0 if it sends none
  double landed_us = 0;    // when the last row that it owns has landed; 0 if it owns none elsewhere
  int64_t shipped_bytes = 0;
};

struct Prediction {
  int32_t comm_sms = 0;
  double gemm_us = 0;  // of the slowest rank, as are the next two
  double copy_us = 0;
  double serial_us = 0;      // GEMM on all SMs, and then the return: until the last row has landed
  double overlapped_us = 0;  // until the last tile is done and the last row has landed
  double behind_us = 0;      // of that, behind the last tile of all ranks; never below 0
  std::vector<RankPrediction> ranks = {};

  // The most that overlap can bring over serial work, and the part of that which is reached.
  double bound() const { return gemm_us + copy_us > 0 ? (gemm_us + copy_us) / longest() : 1; }
  double reached() const { return overlapped_us > 0 ? longest() / overlapped_us : 1; }
  double overlap() const { return copy_us > 0 ? 1 - behind_us / copy_us : 1; }

 private:
  double longest() const { return gemm_us > copy_us ? gemm_us : copy_us; }
};

// One prediction for each number of SMs that ship.
//   ranks  those that are looked at; empty: all. Of some, only what they send is in the prediction: enough where the
//          busiest is among them and its owners have room.
// Cost: O(pieces * log(lanes)) a rank and entry, in as many threads as the machine has cores.
// Errors: InvalidArgument for sizes that are not positive, counts of another shape, comm_sms outside 1 .. sms - 1, and
// what make_plan refuses.
TILEOVERLAP_API std::vector<Prediction> predict(const PredictQuery& query, const RouteCounts& counts,
                                                std::span<const int32_t> comm_sms, std::span<const int32_t> ranks = {});

// What one rank does when, while it overlaps: for drawing.
struct PredictedPiece {
  int32_t peer;
  int64_t bytes;
  double ready_us, begin_us, end_us;  // its bands are done; its lane begins; it has left
};
struct PredictedRank {
  std::vector<double> band_us;  // [bands], in schedule order: when the band is done
  std::vector<PredictedPiece> pieces;
};
TILEOVERLAP_API PredictedRank predict_rank(const PredictQuery& query, const RouteCounts& counts, int32_t comm_sms,
                                           int32_t rank);

}  // namespace tileoverlap
