#include "predict/operator_model.hpp"

#include <algorithm>
#include <limits>

#include "predict/for_all.hpp"

namespace tileoverlap {
namespace {

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

// one(work) of each rank.
template <class SendOne>
std::vector<Sent> send_all(const std::vector<RankWork>& ranks, SendOne one) {
  std::vector<Sent> all(ranks.size());
  for_all(ranks.size(), [&](size_t i) { all[i] = {&ranks[i], one(ranks[i])}; });
  return all;
}

std::vector<Sent> send_all_overlapped(const PredictQuery& query, const std::vector<RankWork>& ranks, int32_t comm_sms) {
  return send_all(ranks, [&](const RankWork& work) {
    return send_overlapped(query, work, TileClock(query, work.gemm, comm_sms), comm_sms);
  });
}

// The last tile of all ranks.
double gemm_end_of(const PredictQuery& query, const std::vector<RankWork>& ranks, int32_t comm_sms) {
  double end = 0;
  for (const RankWork& work : ranks) end = std::max(end, TileClock(query, work.gemm, comm_sms).end_us());
  return end;
}

}  // namespace

std::vector<ShipTimes> send_overlapped(const PredictQuery& query, const RankWork& work, const TileClock& clock,
                                       int32_t comm_sms) {
  return send(query, work, comm_sms, clock.end_us(), [&](size_t i) { return clock.done_us(work.pieces[i].last_tile); });
}

OperatorModel::OperatorModel(const PredictQuery& query, const RouteCounts& counts, std::span<const int32_t> ranks)
    : query_(query), ranks_(ranks.size()) {
  for_all(ranks.size(), [&](size_t i) { ranks_[i] = work_of(query, counts, ranks[i]); });
}

double OperatorModel::overlapped_us(int32_t comm_sms) const {
  const double landed = last_of(land(query_, send_all_overlapped(query_, ranks_, comm_sms)));
  return std::max(gemm_end_of(query_, ranks_, comm_sms), landed) + query_.gpu.end_us;
}

Prediction OperatorModel::predict(int32_t comm_sms) const {
  const auto overlapped = send_all_overlapped(query_, ranks_, comm_sms);
  const auto alone = send_all(ranks_, [&](const RankWork& work) {
    return send(query_, work, comm_sms, 0, [&](size_t) { return query_.gpu.start_us; });
  });
  const auto serial = send_all(ranks_, [&](const RankWork& work) {
    const double gemm_end = TileClock(query_, work.gemm, 0).end_us();
    return send(query_, work, comm_sms, 0, [&](size_t) { return gemm_end + query_.gpu.start_us; });
  });
  const std::vector<double> landed = land(query_, overlapped);

  Prediction prediction{.comm_sms = comm_sms};
  for (size_t i = 0; i < ranks_.size(); ++i) {
    const RankWork& work = ranks_[i];
    RankPrediction rank{.rank = work.rank,
                        .gemm_us = TileClock(query_, work.gemm, 0).end_us(),
                        .copy_us = alone[i].last_us(),
                        .gemm_end_us = TileClock(query_, work.gemm, comm_sms).end_us(),
                        .sent_us = overlapped[i].last_us(),
                        .landed_us = landed[static_cast<size_t>(work.rank)]};
    for (const SentPiece& piece : work.pieces) rank.shipped_bytes += piece.bytes;
    prediction.gemm_us = std::max(prediction.gemm_us, rank.gemm_us);
    prediction.ranks.push_back(rank);
  }
  const double gemm_end_us = gemm_end_of(query_, ranks_, comm_sms);
  prediction.copy_us = last_of(land(query_, alone));
  prediction.serial_us = std::max(prediction.gemm_us, last_of(land(query_, serial))) + query_.gpu.end_us;
  prediction.behind_us = std::max(0.0, last_of(landed) - gemm_end_us);
  prediction.overlapped_us = std::max(gemm_end_us, last_of(landed)) + query_.gpu.end_us;
  return prediction;
}

}  // namespace tileoverlap
