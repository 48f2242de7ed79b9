#include "consume/cpu_consumer.hpp"

#include <cstring>

namespace tileoverlap {
namespace {

// Every tile of the segment's bands carries this epoch's flag.
bool wait_for_bands(const ConsumeTask& task, const Segment& segment, int32_t number) {
  int32_t band = segment.first_band, tile = 0;  // the first that is not there yet
  const auto all_published = [&] {
    for (; band <= segment.last_band; ++band, tile = 0) {
      for (; tile < task.flags->tiles_n(); ++tile) {
        // Acquire: pairs with the release in produce_tiles; the tile's rows can be read.
        if (task.flags->at(band, tile).load(std::memory_order_acquire) != task.epoch) return false;
      }
    }
    return true;
  };
  return task.watch->wait(
      {.what = WaitFor::kBand, .peer = task.plan->rank, .expert = segment.expert, .segment = number}, all_published,
      [&](WaitRecord& record) {
        record.band = band;
        record.tile = tile;
        record.seen = task.flags->at(band, tile).load(std::memory_order_relaxed);
        record.expected = task.epoch;
      });
}

// The owner has read what the call before put into its staging.
bool wait_for_credit(const ConsumeTask& task, const Segment& segment, int32_t number) {
  const auto credit = task.own.word(Word::kCredit, segment.peer);
  // Acquire: pairs with the owner's release behind its reduce; its staging can be overwritten.
  const auto granted = [&] { return credit.load(std::memory_order_acquire) >= task.epoch - 1; };
  return task.watch->wait({.what = WaitFor::kCredit, .peer = segment.peer, .expert = segment.expert, .segment = number},
                          granted, [&](WaitRecord& record) {
                            record.seen = credit.load(std::memory_order_relaxed);
                            record.expected = task.epoch - 1;
                          });
}

void send(const ConsumeTask& task, const Segment& segment, Delay& delay) {
  const RankMemory& owner = task.peers[static_cast<size_t>(segment.peer)];
  const int64_t bytes = segment.row_count * task.row_bytes;
  std::memcpy(owner.staging() + segment.remote_row * task.row_bytes, task.output + segment.row_begin * task.row_bytes,
              static_cast<size_t>(bytes));
  owner.word(Word::kPlan, task.plan->rank).store(task.plan->fingerprint, std::memory_order_relaxed);
  delay();
  // Release: the rows are there before their bytes are counted. Pairs with the owner's acquire in front of its reduce.
  owner.word(Word::kReturned, task.plan->rank).fetch_add(static_cast<uint64_t>(bytes), std::memory_order_release);
}

}  // namespace

void consume_segments(const ConsumeTask& task, int32_t worker, Delay& delay) {
  const auto segments = static_cast<int64_t>(task.plan->segments.size());
  for (int64_t i = task.ticket->fetch_add(1, std::memory_order_relaxed); i < segments;
       i = task.ticket->fetch_add(1, std::memory_order_relaxed)) {
    const auto number = static_cast<int32_t>((*task.order)[i]);
    const Segment& segment = task.plan->segments[static_cast<size_t>(number)];
    const auto recorded = [&](Span span, auto body) {
      return task.recorder->span(worker, span, number, segment.peer, body);
    };
    if (!recorded(Span::kBandWait, [&] { return wait_for_bands(task, segment, number); })) return;
    if (!recorded(Span::kCreditWait, [&] { return wait_for_credit(task, segment, number); })) return;
    delay();
    recorded(Span::kCopy, [&] { send(task, segment, delay); });
  }
}

}  // namespace tileoverlap
