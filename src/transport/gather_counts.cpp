#include "tileoverlap/core/env.hpp"
#include "tileoverlap/transport/transport.hpp"
#include "transport/call_vote.hpp"

namespace tileoverlap {

RouteCounts gather_counts(Exchange& exchange, const Placement& placement, int32_t rank, const TensorArg& topk_ids,
                          int64_t limit_ns) {
  if (limit_ns == 0) limit_ns = Env::read().timeout_ns;
  CallVote vote;
  try {
    vote.counts = count_ids(placement, rank, topk_ids);
  } catch (const Error& error) {
    vote.refusal = error.what();  // the others wait for this rank: they are to know
    exchange.post(vote.encode());
    throw;
  }
  return RouteCounts(placement,
                     collect_counts(exchange.all_gather(vote.encode(), limit_ns), rank, placement.experts()));
}

}  // namespace tileoverlap
