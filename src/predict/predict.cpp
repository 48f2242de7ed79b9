#include "tileoverlap/predict/predict.hpp"

#include <algorithm>
#include <atomic>
#include <exception>
#include <limits>
#include <mutex>
#include <numeric>
#include <thread>

#include "core/text.hpp"
#include "plan/build.hpp"
#include "plan/build_pieces.hpp"
#include "predict/ship_model.hpp"
#include "tileoverlap/core/error.hpp"
#include "tileoverlap/core/math.hpp"

namespace tileoverlap {
namespace {

// What a rank sends in one go, and the tile behind which it can leave.
struct SentPiece {
  int64_t last_tile;  // its place in the order of tiles
  int64_t bytes;
  int32_t peer;
};

struct RankWork {
  int32_t rank;
  GemmShape gemm;
  std::vector<int64_t> last_tile;  // of each band, in schedule order
  std::vector<SentPiece> pieces;   // in the order in which lanes draw them
};

// item(0) .. item(items - 1), in as many threads as there are cores. Throws what the first of them threw.
template <class Item>
void for_all(size_t items, Item item) {
  std::atomic<size_t> next = 0;
  std::mutex mutex;
  std::exception_ptr error;
  const auto work = [&] {
    try {
      for (size_t i = next++; i < items; i = next++) item(i);
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (error == nullptr) error = std::current_exception();
    }
  };
  {
    const size_t threads = std::min<size_t>(items, std::max(1u, std::thread::hardware_concurrency()));
    std::vector<std::jthread> helpers;
    for (size_t i = 1; i < threads; ++i) helpers.emplace_back(work);
    work();
  }
  if (error != nullptr) std::rethrow_exception(error);
}

// Tile of `position` in the order that is done last: a group's bands are interleaved, column by column.
int64_t last_tile_of(const PlanData& plan, size_t position) {
  const ScheduledBand& entry = plan.order[position];
  const int64_t in_group = static_cast<int64_t>(position) - entry.group_begin;
  return int64_t{entry.group_begin} * plan.tiles_n + int64_t{plan.tiles_n - 1} * entry.group_size + in_group;
}

RankWork work_of(const PredictQuery& query, const RouteCounts& counts, int32_t rank) {
  const PlanData plan = build::plan_work(query.placement, rank, counts, query.n, query.plan);
  RankWork work{.rank = rank,
                .gemm = {.bands = static_cast<int64_t>(plan.order.size()),
                         .k = query.k,
                         .n = query.n,
                         .tile_m = query.plan.tile_m,
                         .tile_n = query.plan.tile_n},
                .last_tile = {},
                .pieces = {}};
  for (const ExpertRows& expert : plan.experts) work.gemm.experts += expert.bands > 0 ? 1 : 0;
  std::vector<int64_t> of_band(plan.order.size());
  for (size_t position = 0; position < plan.order.size(); ++position) {
    work.last_tile.push_back(last_tile_of(plan, position));
    of_band[static_cast<size_t>(plan.order[position].band)] = work.last_tile.back();
  }
  const int64_t row_bytes = query.n * query.element_bytes;
  std::vector<Piece> pieces;
  build_pieces(plan, piece_rows(row_bytes, query.plan.tile_m), pieces);
  work.pieces.reserve(pieces.size());
  for (const Piece& piece : pieces) {
    const auto first = of_band.begin() + piece.first_band, end = of_band.begin() + piece.last_band + 1;
    work.pieces.push_back({*std::max_element(first, end), piece.row_count * row_bytes, piece.peer});
  }
  return work;
}

int32_t sms_of(const PredictQuery& query) { return query.sms > 0 ? query.sms : query.gpu.sms; }

// When tiles are done, on `sms` of a rank's SMs.
class TileClock {
 public:
  TileClock(const PredictQuery& query, const GemmShape& gemm, int32_t sms, double slowdown) : sms_(sms) {
    const int64_t tiles = gemm.bands * ceil_div(gemm.n, gemm.tile_n);
    if (tiles == 0) return;
    start_us_ = query.gpu.start_us;
    flag_us_ = query.gpu.tile_us;
    waves_ = static_cast<double>(ceil_div(tiles, sms));
    tile_us_ = std::max(0.0, gemm_us(query.gpu, gemm, sms) - start_us_) / waves_ * (1 + slowdown);
  }
  double done_us(int64_t tile) const { return start_us_ + flag_us_ + static_cast<double>(tile / sms_ + 1) * tile_us_; }
  double end_us() const { return start_us_ + waves_ * tile_us_; }

 private:
  int32_t sms_;
  double start_us_ = 0, flag_us_ = 0, waves_ = 0, tile_us_ = 0;
};

TileClock clock_of(const PredictQuery& query, const GemmShape& gemm, int32_t comm_sms) {
  return {query, gemm, sms_of(query) - comm_sms, comm_sms > 0 ? query.gpu.gemm_slowdown : 0};
}

bool same_domain(const LinkRates& link, int32_t a, int32_t b) {
  return link.domain <= 0 || a / link.domain == b / link.domain;
}

constexpr double kUnlimited = std::numeric_limits<double>::infinity();
double or_unlimited(double gbs) { return gbs > 0 ? gbs : kUnlimited; }

// When each piece begins and ends to leave its rank; ready(i) of piece i.
template <class Ready>
std::vector<ShipTimes> send(const PredictQuery& query, const RankWork& work, int32_t comm_sms, double alone_from_us,
                            Ready ready) {
  std::vector<ShipPiece> pieces;
  pieces.reserve(work.pieces.size());
  for (size_t i = 0; i < work.pieces.size(); ++i) {
    const SentPiece& piece = work.pieces[i];
    pieces.push_back({ready(i), static_cast<double>(piece.bytes), !same_domain(query.link, work.rank, piece.peer)});
  }
  const GpuRates& gpu = query.gpu;
  std::vector<ShipTimes> times(pieces.size());
  ship(pieces,
       {.lanes = comm_sms * gpu.lanes,
        .beside_gbs = comm_sms * gpu.ship_gbs * gpu.ship_share,
        .alone_gbs = comm_sms * gpu.ship_gbs,
        .alone_from_us = alone_from_us,
        .lane_gbs = gpu.lane_gbs,
        .link_gbs = or_unlimited(query.link.gbs),
        .network_gbs = or_unlimited(query.link.network_gbs)},
       times);
  return times;
}

// A rank's rows as they leave it.
struct Sent {
  const RankWork* work;
  std::vector<ShipTimes> times;
  double last_us() const {
    double last = 0;
    for (const ShipTimes& piece : times) last = std::max(last, piece.end_us);
    return last;
  }
};

// When the last row of each owner has landed. An owner takes in what comes in the order in which it begins to come, no
// faster than its link, from its domain and from the network side by side.
std::vector<double> land(const PredictQuery& query, const std::vector<Sent>& all) {
  struct Arrival {
    double begin_us, left_us;
    int64_t bytes;
    bool over_network;
  };
  const auto world = static_cast<size_t>(query.placement.world());
  std::vector<std::vector<Arrival>> by_owner(world);
  for (const Sent& sent : all) {
    for (size_t i = 0; i < sent.times.size(); ++i) {
      const SentPiece& piece = sent.work->pieces[i];
      const bool over_network = !same_domain(query.link, sent.work->rank, piece.peer);
      const ShipTimes& times = sent.times[i];
      // A lane hands over what the network begins to send later.
      const double network_us = static_cast<double>(piece.bytes) / (or_unlimited(query.link.network_gbs) * 1e3);
      const double begin_us = over_network ? times.end_us - network_us : times.begin_us;
      by_owner[static_cast<size_t>(piece.peer)].push_back({begin_us, times.end_us, piece.bytes, over_network});
    }
  }
  std::vector<double> landed(world, 0);
  for_all(world, [&](size_t owner) {
    std::vector<Arrival>& arrivals = by_owner[owner];
    std::stable_sort(arrivals.begin(), arrivals.end(),
                     [](const Arrival& a, const Arrival& b) { return a.begin_us < b.begin_us; });
    double free_us[2] = {0, 0};
    for (const Arrival& arrival : arrivals) {
      const double gbs = or_unlimited(arrival.over_network ? query.link.network_gbs : query.link.gbs);
      const double latency = arrival.over_network ? query.link.network_latency_us : query.link.latency_us;
      double& free = free_us[arrival.over_network ? 1 : 0];
      free = std::max(free, arrival.begin_us) + static_cast<double>(arrival.bytes) / (gbs * 1e3);
      landed[owner] = std::max(landed[owner], std::max(free, arrival.left_us) + latency);
    }
  });
  return landed;
}

double last_of(const std::vector<double>& landed) {
  return landed.empty() ? 0 : *std::max_element(landed.begin(), landed.end());
}

template <class SendOne>
std::vector<Sent> send_all(const std::vector<RankWork>& ranks, SendOne one) {
  std::vector<Sent> all(ranks.size());
  for_all(ranks.size(), [&](size_t i) { all[i] = {&ranks[i], one(ranks[i])}; });
  return all;
}

Prediction predict_split(const PredictQuery& query, const std::vector<RankWork>& ranks, int32_t comm_sms) {
  const auto overlapped = send_all(ranks, [&](const RankWork& work) {
    const TileClock clock = clock_of(query, work.gemm, comm_sms);
    return send(query, work, comm_sms, clock.end_us(),
                [&](size_t i) { return clock.done_us(work.pieces[i].last_tile); });
  });
  const auto alone = send_all(ranks, [&](const RankWork& work) {
    return send(query, work, comm_sms, 0, [&](size_t) { return query.gpu.start_us; });
  });
  const auto serial = send_all(ranks, [&](const RankWork& work) {
    const double gemm_end = clock_of(query, work.gemm, 0).end_us();
    return send(query, work, comm_sms, 0, [&](size_t) { return gemm_end + query.gpu.start_us; });
  });
  const std::vector<double> landed = land(query, overlapped);

  Prediction prediction{.comm_sms = comm_sms, .ranks = {}};
  double gemm_end_us = 0;
  for (size_t i = 0; i < ranks.size(); ++i) {
    const RankWork& work = ranks[i];
    RankPrediction rank{.rank = work.rank,
                        .gemm_us = clock_of(query, work.gemm, 0).end_us(),
                        .copy_us = alone[i].last_us(),
                        .gemm_end_us = clock_of(query, work.gemm, comm_sms).end_us(),
                        .sent_us = overlapped[i].last_us(),
                        .landed_us = landed[static_cast<size_t>(work.rank)]};
    for (const SentPiece& piece : work.pieces) rank.shipped_bytes += piece.bytes;
    prediction.gemm_us = std::max(prediction.gemm_us, rank.gemm_us);
    gemm_end_us = std::max(gemm_end_us, rank.gemm_end_us);
    prediction.ranks.push_back(rank);
  }
  prediction.copy_us = last_of(land(query, alone));
  prediction.serial_us = std::max(prediction.gemm_us, last_of(land(query, serial))) + query.gpu.end_us;
  prediction.behind_us = std::max(0.0, last_of(landed) - gemm_end_us);
  prediction.overlapped_us = gemm_end_us + prediction.behind_us + query.gpu.end_us;
  return prediction;
}

void check_query(const PredictQuery& query, std::span<const int32_t> comm_sms) {
  const auto positive = [](const char* what, auto value) {
    if (!(value > 0)) throw InvalidArgument(text("a prediction needs ", what, " > 0, got ", value));
  };
  positive("k", query.k);
  positive("element_bytes", query.element_bytes);
  positive("gpu.sms", query.gpu.sms);
  positive("gpu.lanes", query.gpu.lanes);
  positive("gpu.matmul_tflops", query.gpu.matmul_tflops);
  positive("gpu.memory_gbs", query.gpu.memory_gbs);
  positive("gpu.ship_gbs", query.gpu.ship_gbs);
  positive("gpu.ship_share", query.gpu.ship_share);
  positive("gpu.lane_gbs", query.gpu.lane_gbs);
  const int32_t sms = sms_of(query);
  if (sms > query.gpu.sms) throw InvalidArgument(text("sms = ", sms, " of a GPU that has ", query.gpu.sms));
  for (const int32_t count : comm_sms) {
    if (count < 1 || count >= sms) {
      throw InvalidArgument(text("comm_sms must lie in 1..", sms - 1, ", of ", sms, " SMs, got ", count));
    }
  }
}

}  // namespace

std::vector<Prediction> predict(const PredictQuery& query, const RouteCounts& counts, std::span<const int32_t> comm_sms,
                                std::span<const int32_t> ranks) {
  check_query(query, comm_sms);
  std::vector<int32_t> looked_at(ranks.begin(), ranks.end());
  if (looked_at.empty()) {
    looked_at.resize(static_cast<size_t>(query.placement.world()));
    std::iota(looked_at.begin(), looked_at.end(), 0);
  }
  for (const int32_t rank : looked_at) build::check_inputs(query.placement, rank, counts, query.n, query.plan);
  std::vector<RankWork> works(looked_at.size());
  for_all(works.size(), [&](size_t i) { works[i] = work_of(query, counts, looked_at[i]); });
  std::vector<Prediction> predictions;
  for (const int32_t count : comm_sms) predictions.push_back(predict_split(query, works, count));
  return predictions;
}

PredictedRank predict_rank(const PredictQuery& query, const RouteCounts& counts, int32_t comm_sms, int32_t rank) {
  check_query(query, std::span(&comm_sms, 1));
  build::check_inputs(query.placement, rank, counts, query.n, query.plan);
  const RankWork work = work_of(query, counts, rank);
  const TileClock clock = clock_of(query, work.gemm, comm_sms);
  const auto ready = [&](size_t i) { return clock.done_us(work.pieces[i].last_tile); };
  const std::vector<ShipTimes> times = send(query, work, comm_sms, clock.end_us(), ready);
  PredictedRank result;
  for (const int64_t tile : work.last_tile) result.band_us.push_back(clock.done_us(tile));
  for (size_t i = 0; i < times.size(); ++i) {
    result.pieces.push_back({work.pieces[i].peer, work.pieces[i].bytes, ready(i), times[i].begin_us, times[i].end_us});
  }
  return result;
}

}  // namespace tileoverlap
