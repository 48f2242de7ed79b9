#include <cstring>

#include "core/text.hpp"
#include "tileoverlap/core/env.hpp"
#include "tileoverlap/transport/transport.hpp"

namespace tileoverlap {

RouteCounts gather_counts(Exchange& exchange, const Placement& placement, int32_t rank, const TensorArg& topk_ids,
                          int64_t limit_ns) {
  const std::vector<int32_t> mine = count_ids(placement, rank, topk_ids);
  const auto messages = exchange.all_gather(std::as_bytes(std::span(mine)),
                                            limit_ns > 0 ? limit_ns : Env::read().timeout_ns);
  std::vector<int32_t> all;
  for (size_t peer = 0; peer < messages.size(); ++peer) {
    if (messages[peer].size() != mine.size() * sizeof(int32_t)) {
      throw InvalidArgument(text("rank ", rank, " counts ", mine.size(), " experts, rank ", peer, " counts ",
                                 messages[peer].size() / sizeof(int32_t)));
    }
    const size_t old_size = all.size();
    all.resize(old_size + mine.size());
    if (!mine.empty()) std::memcpy(all.data() + old_size, messages[peer].data(), messages[peer].size());
  }
  return RouteCounts(placement, std::move(all));
}

}  // namespace tileoverlap
