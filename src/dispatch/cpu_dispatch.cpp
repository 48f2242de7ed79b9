#include "dispatch/cpu_dispatch.hpp"

#include <algorithm>
#include <cstring>

namespace tileoverlap {

bool wait_for_dispatch_credits(const DispatchTask& task) {
  const int32_t world = task.plan->placement.world();
  for (int32_t position = 0; position + 1 < world; ++position) {
    const int32_t peer = owner_at(task.plan->rank, position, world);
    const auto credit = task.own.word(Word::kDispatchCredit, peer);
    // Acquire: pairs with the peer's release behind the GEMM that read its input rows.
    const auto granted = [&] { return credit.load(std::memory_order_acquire) >= task.epoch - 1; };
    const auto observe = [&](WaitRecord& record) {
      record.seen = credit.load(std::memory_order_relaxed);
      record.expected = task.epoch - 1;
    };
    if (!task.watch->wait({.what = WaitFor::kDispatchCredit, .peer = peer}, granted, observe)) return false;
  }
  return true;
}

void dispatch_rows(const DispatchTask& task) {
  constexpr int64_t kTokensPerChunk = 64;
  const int64_t row_bytes = task.x.shape[1] * size_of(task.x.dtype);
  const int64_t stride_bytes = task.x.strides[0] * size_of(task.x.dtype);
  const int32_t top_k = task.index->top_k;
  for (int64_t begin = task.ticket->fetch_add(kTokensPerChunk, std::memory_order_relaxed); begin < task.index->tokens;
       begin = task.ticket->fetch_add(kTokensPerChunk, std::memory_order_relaxed)) {
    const int64_t end = std::min(task.index->tokens, begin + kTokensPerChunk);
    for (int64_t copy = begin * top_k; copy < end * top_k; ++copy) {
      const int32_t peer = task.index->peer[static_cast<size_t>(copy)];
      if (peer < 0) continue;
      const int64_t row = task.index->dispatch_row[static_cast<size_t>(copy)];
      std::memcpy(task.peers[static_cast<size_t>(peer)].input() + row * row_bytes,
                  task.x.data + copy / top_k * stride_bytes, static_cast<size_t>(row_bytes));
    }
  }
}

void publish_dispatch(const DispatchTask& task, Delay& delay) {
  const PlanData& plan = *task.plan;
  const int64_t row_bytes = task.x.shape[1] * size_of(task.x.dtype);
  const int32_t world = plan.placement.world();
  for (int32_t position = 0; position + 1 < world; ++position) {
    const int32_t peer = owner_at(plan.rank, position, world);
    const int64_t rows = plan.returned_rows[static_cast<size_t>(peer)];  // what goes out comes back
    if (rows == 0) continue;
    delay();
    // Release: the rows are there before their bytes are counted. Pairs with the peer's acquire in front of its GEMM.
    task.peers[static_cast<size_t>(peer)]
        .word(Word::kDispatched, plan.rank)
        .fetch_add(static_cast<uint64_t>(rows * row_bytes), std::memory_order_release);
  }
}

}  // namespace tileoverlap
