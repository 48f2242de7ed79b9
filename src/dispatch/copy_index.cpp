#include "tileoverlap/dispatch/copy_index.hpp"

#include <algorithm>

#include "core/text.hpp"
#include "routing/read_ids.hpp"
#include "tileoverlap/core/error.hpp"

namespace tileoverlap {

void CopyIndex::reserve(int64_t max_tokens, int32_t slots) {
  const auto copies = static_cast<size_t>(max_tokens) * static_cast<size_t>(slots);
  peer.reserve(copies);
  dispatch_row.reserve(copies);
  gather_row.reserve(copies);
}

void fill_copy_index(const Plan& handle, const TensorView& topk_ids, CopyIndex& index) {
  const PlanData& plan = *handle;
  const auto copies = static_cast<size_t>(topk_ids.shape[0]) * static_cast<size_t>(topk_ids.shape[1]);
  index.tokens = topk_ids.shape[0];
  index.top_k = static_cast<int32_t>(topk_ids.shape[1]);
  index.peer.assign(copies, -1);
  index.dispatch_row.assign(copies, -1);
  index.gather_row.assign(copies, -1);

  const auto count_of = [&](size_t expert) { return plan.staging_row[expert + 1] - plan.staging_row[expert]; };
  std::vector<int64_t> seen(static_cast<size_t>(plan.placement.experts()), 0);
  int32_t host = 0;
  for_each_copy(topk_ids, plan.placement.experts(), plan.rank, [&](int64_t token, int32_t slot, int32_t expert) {
    const auto e = static_cast<size_t>(expert);
    if (expert < plan.placement.begin(host) || expert >= plan.placement.end(host))
      host = plan.placement.rank_of(expert);
    const int64_t copy = seen[e]++;
    const int64_t row = plan.dispatch_row[e] + copy;
    const auto at = static_cast<size_t>(token * index.top_k + slot);
    index.peer[at] = host;
    index.dispatch_row[at] = row;
    index.gather_row[at] = host == plan.rank ? plan.staging_rows + row : plan.staging_row[e] + copy;
  });
  for (size_t e = 0; e < seen.size(); ++e) {
    if (seen[e] != count_of(e)) {
      throw InvalidArgument(text("topk_ids do not belong to this plan: rank ", plan.rank, " sends ", seen[e],
                                 " copies to expert ", e, ", the plan was made for ", count_of(e)));
    }
  }
}

CopyIndex make_copy_index(const Plan& plan, const TensorArg& topk_ids) {
  CopyIndex index;
  fill_copy_index(plan, check_ids(topk_ids), index);
  return index;
}

}  // namespace tileoverlap
