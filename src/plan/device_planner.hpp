#pragma once
// make_plan for one group of threads: from the counts matrix to a DevicePlan with the same bits as write_plan's.
//
// The work is cut into steps; in a step each thread does its share, reading only what earlier steps have written. So
// the host can run the same code, thread by thread, in any order within a step.

#include <cstddef>
#include <cstdint>

#include "plan/band_groups.hpp"
#include "plan/device_plan.hpp"
#include "plan/fingerprint_words.hpp"
#include "plan/planner_scratch.hpp"
#include "plan/planner_sums.hpp"
#include "plan/run_cut.hpp"
#include "tileoverlap/plan/layout.hpp"
#include "tileoverlap/plan/options.hpp"

namespace tileoverlap {

struct PlannerInput {
  int32_t rank = 0, world = 0;
  int32_t experts = 0;  // of all ranks
  int32_t n = 0;        // as in make_plan
  PlanOptions options = {};
  const int32_t* expert_begin = nullptr;  // [world + 1], as in Placement
  const int32_t* counts = nullptr;        // of owner s and expert e at [s * counts_stride + e]
  int64_t counts_stride = 0;
  int64_t piece_rows = 0;
  int64_t max_bands = 0, max_pieces = 0;  // of the DevicePlanLayout
  int32_t refused_by = -1;                // a rank that refused: the plan is empty and the counts are not read
};

struct PlannerResult {
  int64_t bands, pieces;  // that the counts need
  bool too_large;         // there is no room for them: the plan has no band and no piece
};

namespace planner {

struct Steps {
  const PlannerInput& in;
  const PlannerScratch& work;
  const DevicePlan& plan;
  int32_t first_expert, local;  // experts of this rank

  TILEOVERLAP_HD Steps(const PlannerInput& input, const PlannerScratch& scratch, const DevicePlan& result)
      : in(input),
        work(scratch),
        plan(result),
        first_expert(input.expert_begin[input.rank]),
        local(input.expert_begin[input.rank + 1] - first_expert) {}

  TILEOVERLAP_HD const int32_t* counts_of(int32_t owner) const { return in.counts + owner * in.counts_stride; }
  TILEOVERLAP_HD int64_t bands() const { return work.band_begin[first_expert + local] - work.band_begin[first_expert]; }
  TILEOVERLAP_HD int32_t remote_owners() const { return in.world - 1; }
  TILEOVERLAP_HD int32_t run_count() const { return local * remote_owners(); }
  TILEOVERLAP_HD int64_t pieces() const { return work.sent[run_count()].pieces; }
  TILEOVERLAP_HD bool too_many_bands() const {
    constexpr int64_t kMaxBands = 0x7fffffff;  // positions are 32-bit
    return bands() > min64(in.max_bands, kMaxBands);
  }
  TILEOVERLAP_HD bool too_large() const { return too_many_bands() || pieces() > in.max_pieces; }

  // Sums along the rows of the matrix: threads are spread over owners, then over the chunks of one row.
  template <class Visit>
  TILEOVERLAP_HD void for_each_row(int32_t thread, int32_t threads, Visit visit) const {
    const int32_t workers = threads > in.world ? threads / in.world : 1;
    const Chunks chunks = Chunks::over(in.experts, workers);
    for (int32_t owner = thread / workers; owner < in.world; owner += threads / workers) {
      visit(owner, thread % workers, chunks, work.row_sums + static_cast<int64_t>(owner) * chunks.count);
    }
  }
  TILEOVERLAP_HD void sum_rows(int32_t thread, int32_t threads) const {
    for_each_row(thread, threads, [&](int32_t owner, int32_t worker, Chunks chunks, int64_t* sums) {
      const int32_t* counts = counts_of(owner);
      sum_chunks(
          worker, chunks, in.experts, [=](int32_t expert) { return int64_t{counts[expert]}; }, sums);
    });
  }
  TILEOVERLAP_HD void scan_rows(int32_t thread, int32_t threads) const {
    for_each_row(thread, threads, [&](int32_t owner, int32_t worker, Chunks chunks, int64_t* sums) {
      const int32_t* counts = counts_of(owner);
      const auto put = [&](int32_t expert, int64_t row) {
        if (owner == in.rank) plan.staging_row[expert] = row;
        const int32_t at = expert - first_expert;
        if (at >= 0 && at <= local) work.remote_row[static_cast<int64_t>(at) * in.world + owner] = row;
      };
      scan_chunks(
          worker, chunks, in.experts, [=](int32_t expert) { return int64_t{counts[expert]}; }, sums, put);
    });
  }

  // Every rank's experts: their bands, and where this rank's run begins in each (dispatch_row, still from the expert's
  // first row).
  TILEOVERLAP_HD void measure_experts(int32_t thread, int32_t threads) const {
    for (int32_t expert = thread; expert < in.experts; expert += threads) {
      const int32_t host = host_of(in.expert_begin, in.world, expert);
      int64_t* runs =
          host == in.rank ? work.run_begin + static_cast<int64_t>(expert - first_expert) * in.world : nullptr;
      const ExpertExtent extent = walk_runs(
          host, in.world, in.options.layout, in.options.tile_m,
          [&](int32_t owner) { return int64_t{counts_of(owner)[expert]}; },
          [&](int32_t owner, int64_t row_begin, int64_t) {
            if (owner == in.rank) plan.dispatch_row[expert] = row_begin;
            if (runs != nullptr) *runs++ = row_begin;
          });
      work.bands[expert] = ceil_div(extent.rows, in.options.tile_m);
      if (host == in.rank) work.remote_bands[expert - first_expert] = ceil_div(extent.remote_rows, in.options.tile_m);
    }
  }
  TILEOVERLAP_HD void sum_bands(int32_t thread, int32_t threads) const {
    sum_chunks(
        thread, Chunks::over(in.experts, threads), in.experts, [&](int32_t expert) { return work.bands[expert]; },
        work.band_sums);
  }
  TILEOVERLAP_HD void scan_bands(int32_t thread, int32_t threads) const {
    scan_chunks(
        thread, Chunks::over(in.experts, threads), in.experts, [&](int32_t expert) { return work.bands[expert]; },
        work.band_sums, [&](int32_t expert, int64_t begin) { work.band_begin[expert] = begin; });
  }
  // First row of an expert on the rank that hosts it.
  TILEOVERLAP_HD int64_t first_row(int32_t expert, int32_t host) const {
    return (work.band_begin[expert] - work.band_begin[in.expert_begin[host]]) * in.options.tile_m;
  }
  TILEOVERLAP_HD void move_dispatch_rows(int32_t thread, int32_t threads) const {
    for (int32_t expert = thread; expert < in.experts; expert += threads) {
      plan.dispatch_row[expert] += first_row(expert, host_of(in.expert_begin, in.world, expert));
    }
  }
  TILEOVERLAP_HD void count_rows_by_peer(int32_t thread, int32_t threads) const {
    for (int32_t peer = thread; peer < in.world; peer += threads) {
      const int64_t to_host = plan.staging_row[in.expert_begin[peer + 1]] - plan.staging_row[in.expert_begin[peer]];
      plan.returned_rows[peer] = peer == in.rank ? 0 : to_host;
      plan.dispatched_rows[peer] =
          work.remote_row[static_cast<int64_t>(local) * in.world + peer] - work.remote_row[peer];
    }
  }

  // More remote bands first, ties by expert: an expert's place is the number of those before it.
  TILEOVERLAP_HD void sort_experts(int32_t thread, int32_t threads) const {
    for (int32_t expert = thread; expert < local; expert += threads) {
      const int64_t own = work.remote_bands[expert];
      int32_t place = 0;
      for (int32_t other = 0; other < local; ++other) {
        const int64_t bands = work.remote_bands[other];
        place += bands > own || (bands == own && other < expert) ? 1 : 0;
      }
      work.by_load[place] = expert;
      work.entry_group[expert] = work.entry_group[local + expert] = in.options.group;  // until grow_groups
    }
  }

  TILEOVERLAP_HD int64_t local_bands(int32_t expert) const {
    return work.bands[first_expert + expert] - work.remote_bands[expert];
  }
  // By one thread.
  TILEOVERLAP_HD void find_split(int32_t thread) const {
    if (thread != 0) return;
    work.notes->first_split = first_split_place(
        local, in.options.group, [&](int32_t place) { return work.remote_bands[work.by_load[place]]; },
        [&](int32_t place) { return local_bands(work.by_load[place]); });
  }

  // The schedule is a list of entries: the bands of each expert by load, without the local ones that are held back,
  // then those.
  struct Entry {
    int32_t expert;  // counted from the rank's first
    int64_t skipped, bands;
  };
  TILEOVERLAP_HD Entry entry(int32_t number) const {
    const int32_t place = number < local ? number : number - local;
    const int32_t expert = work.by_load[place];
    const int64_t remote_bands = work.remote_bands[expert];
    const int64_t held = held_bands(place, work.notes->first_split, local_bands(expert));
    if (number < local) return {expert, 0, work.bands[first_expert + expert] - held};
    return {expert, remote_bands, held};
  }
  TILEOVERLAP_HD void sum_entries(int32_t thread, int32_t threads) const {
    sum_chunks(
        thread, Chunks::over(2 * local, threads), 2 * local, [&](int32_t number) { return entry(number).bands; },
        work.entry_sums);
  }
  TILEOVERLAP_HD void scan_entries(int32_t thread, int32_t threads) const {
    scan_chunks(
        thread, Chunks::over(2 * local, threads), 2 * local, [&](int32_t number) { return entry(number).bands; },
        work.entry_sums, [&](int32_t number, int64_t begin) { work.entry_begin[number] = begin; });
  }
  TILEOVERLAP_HD int32_t grown(int32_t group) const {
    return static_cast<int32_t>(min64(static_cast<int64_t>(group) * 2, in.options.group));
  }
  // By one thread: the groups double a few times at the head of the list, then all have their final size.
  TILEOVERLAP_HD void grow_groups(int32_t thread) const {
    if (thread != 0) return;
    int32_t group = 1;
    for (int32_t number = 0; number < 2 * local && group < in.options.group; ++number) {
      work.entry_group[number] = group;
      for (int64_t left = entry(number).bands; left > 0 && group < in.options.group; group = grown(group))
        left -= group;
    }
  }
  TILEOVERLAP_HD void fill_order(int32_t thread, int32_t threads) const {
    if (too_many_bands()) return;
    const auto count = static_cast<int32_t>(bands());
    for (int64_t i = thread; i < count; i += threads) {
      const auto position = static_cast<int32_t>(i);
      const int32_t number =
          last_not_above(position, 2 * local, [&](int32_t other) { return work.entry_begin[other]; });
      const Entry at = entry(number);
      const auto entry_begin = static_cast<int32_t>(work.entry_begin[number]);
      const BandGroup group = group_at(position - entry_begin, at.bands, work.entry_group[number], in.options.group);
      const int64_t first_band = work.band_begin[first_expert + at.expert] - work.band_begin[first_expert] + at.skipped;
      plan.order[position] = {.band = static_cast<int32_t>(first_band) + (position - entry_begin),
                              .expert = first_expert + at.expert,
                              .group_begin = entry_begin + static_cast<int32_t>(group.begin),
                              .group_size = group.size};
    }
  }

  // Runs are numbered by load of their expert, then by position. An expert without remote bands has no rows to send,
  // and those come last.
  TILEOVERLAP_HD int64_t copies_at(int32_t place, int32_t position) const {
    return counts_of(owner_at(in.rank, position, in.world))[first_expert + work.by_load[place]];
  }
  TILEOVERLAP_HD void find_ends(int32_t thread, int32_t threads) const {
    for (int32_t place = thread; place < local; place += threads) {
      if (work.remote_bands[work.by_load[place]] == 0) continue;
      if (place == 0) {
        int32_t position = 0;
        while (copies_at(place, position) == 0) ++position;
        work.notes->first_run = position;
      }
      if (place + 1 == local || work.remote_bands[work.by_load[place + 1]] == 0) {
        int32_t position = remote_owners() - 1;
        while (copies_at(place, position) == 0) --position;
        work.notes->last_run = static_cast<int64_t>(place) * remote_owners() + position;
      }
    }
  }
  TILEOVERLAP_HD RunCut cut(int32_t number, const RunToSend& run) const {
    return RunCut::of(run, number == work.notes->first_run, number == work.notes->last_run, in.options, in.piece_rows);
  }
  TILEOVERLAP_HD void list_runs(int32_t thread, int32_t threads) const {
    for (int32_t number = thread; number < run_count(); number += threads) {
      const int32_t place = number / remote_owners(), position = number % remote_owners();
      const int32_t at = work.by_load[place], owner = owner_at(in.rank, position, in.world);
      const int64_t in_table = static_cast<int64_t>(at) * in.world;
      const RunToSend run{.row_begin = first_row(first_expert + at, in.rank) + work.run_begin[in_table + position],
                          .remote_row = work.remote_row[in_table + owner],
                          .row_count = counts_of(owner)[first_expert + at],
                          .expert = first_expert + at,
                          .owner = owner};
      work.runs[number] = run;
      work.sent[number] = {};
      if (run.row_count == 0) continue;
      const RunCut parts = cut(number, run);
      work.sent[number] = {parts.segments, parts.pieces()};
    }
  }
  TILEOVERLAP_HD void list_stored_runs(int32_t thread, int32_t threads) const {
    for (int32_t number = thread; number < local * in.world; number += threads) {
      const int32_t at = number / in.world, position = number % in.world;
      const int32_t owner = owner_at(in.rank, position, in.world);
      plan.runs[number] = {
          .row_begin = static_cast<int32_t>(first_row(first_expert + at, in.rank) + work.run_begin[number]),
          .row_count = counts_of(owner)[first_expert + at],
          .owner = owner,
          .remote_row = static_cast<int32_t>(work.remote_row[static_cast<int64_t>(at) * in.world + owner])};
    }
  }
  TILEOVERLAP_HD void sum_runs(int32_t thread, int32_t threads) const {
    sum_chunks(
        thread, Chunks::over(run_count(), threads), run_count(), [&](int32_t run) { return work.sent[run]; },
        work.send_sums);
  }
  TILEOVERLAP_HD void scan_runs(int32_t thread, int32_t threads) const {
    scan_chunks(
        thread, Chunks::over(run_count(), threads), run_count(), [&](int32_t run) { return work.sent[run]; },
        work.send_sums, [&](int32_t run, const SendCount& before) { work.sent[run] = before; });
  }
  TILEOVERLAP_HD void fill_pieces(int32_t thread, int32_t threads) const {
    if (too_large()) return;
    for (int64_t number = thread; number < pieces(); number += threads) {
      const int32_t at = last_not_above(number, run_count(), [&](int32_t run) { return work.sent[run].pieces; });
      const RunToSend run = work.runs[at];
      const RunCut parts = cut(at, run);
      const auto in_run = static_cast<int32_t>(number - work.sent[at].pieces);
      const int32_t segment = parts.segment_of(in_run);
      const int32_t row = parts.segment_begin(segment) + (in_run - parts.pieces_before(segment)) * parts.piece_rows;
      const auto rows = static_cast<int32_t>(min64(parts.piece_rows, parts.segment_begin(segment + 1) - row));
      plan.pieces[number] = {.first_band = static_cast<int32_t>(parts.first_band) + parts.band_of(row),
                             .last_band = static_cast<int32_t>(parts.first_band) + parts.band_of(row + rows - 1),
                             .peer = run.owner,
                             .segment = static_cast<int32_t>(work.sent[at].segments) + segment,
                             .expert = run.expert,
                             .row_count = rows,
                             .row_begin = run.row_begin + row,
                             .remote_row = run.remote_row + row};
    }
  }

  // The fingerprint is a chain of multiplications, and the longest one here: one thread adds a share of the words in
  // each step, beside what the others do.
  static constexpr int32_t kShares = 7;
  TILEOVERLAP_HD void add_fingerprint(int32_t share) const {
    constexpr uint64_t kFirst = 0xcbf29ce484222325u;
    uint64_t hash = share == 0 ? add_words(kFirst, in.expert_begin, in.world + 1) : work.notes->fingerprint;
    const auto begin_of = [&](int32_t at) { return static_cast<int32_t>(int64_t{in.world} * at / kShares); };
    const int32_t end = begin_of(share + 1);
    for (int32_t owner = begin_of(share); owner < end; ++owner) hash = add_words(hash, counts_of(owner), in.experts);
    if (share == kShares - 1) {
      const int32_t last[] = {in.n, in.options.tile_m, in.options.tile_n, static_cast<int32_t>(in.options.layout)};
      hash = add_words(hash, last, 4);
      hash ^= hash >> 32;
      if (hash == 0) hash = 1;
    }
    work.notes->fingerprint = hash;
  }

  TILEOVERLAP_HD void write_head(uint64_t fingerprint) const {
    *plan.head = {.bands = too_large() ? 0 : static_cast<int32_t>(bands()),
                  .refused_by = -1,
                  .pieces = too_large() ? 0 : pieces(),
                  .staging_rows = plan.staging_row[in.experts],
                  .fingerprint = fingerprint};
  }
};

// The plan of a refused call: nothing to compute, nothing to send, nothing to wait for.
TILEOVERLAP_HD inline void write_empty_plan(const PlannerInput& in, const DevicePlan& plan, int32_t thread,
                                            int32_t threads) {
  if (thread == 0) {
    *plan.head = {.bands = 0, .refused_by = in.refused_by, .pieces = 0, .staging_rows = 0, .fingerprint = 0};
    plan.staging_row[in.experts] = 0;
  }
  for (int32_t i = thread; i < in.experts; i += threads) plan.staging_row[i] = plan.dispatch_row[i] = 0;
  for (int32_t i = thread; i < in.world; i += threads) plan.returned_rows[i] = plan.dispatched_rows[i] = 0;
}

}  // namespace planner

// Called by all threads of the group alike. group.each(step) calls step(thread, threads) for every thread of the group
// and returns when all have taken it, with what they wrote visible to all. All threads return the same.
#if defined(__CUDACC__)
#pragma nv_exec_check_disable  // a group lives on the host or on the device
#endif
template <class Group>
TILEOVERLAP_HD PlannerResult plan_call(Group& group, const PlannerInput& input, const PlannerScratch& scratch,
                                       const DevicePlan& plan) {
  if (input.refused_by >= 0) {
    group.each([&](int32_t thread, int32_t threads) { planner::write_empty_plan(input, plan, thread, threads); });
    return {.bands = 0, .pieces = 0, .too_large = false};
  }
  const planner::Steps steps(input, scratch, plan);
  const auto hash = [&](int32_t share, int32_t thread, int32_t threads) {
    if (thread == threads - 1) steps.add_fingerprint(share);
  };
  group.each([&](int32_t thread, int32_t threads) {
    steps.measure_experts(thread, threads);
    steps.sum_rows(thread, threads);
    hash(0, thread, threads);
  });
  group.each([&](int32_t thread, int32_t threads) {
    steps.scan_rows(thread, threads);
    steps.sum_bands(thread, threads);
    steps.sort_experts(thread, threads);
    hash(1, thread, threads);
  });
  group.each([&](int32_t thread, int32_t threads) {
    steps.scan_bands(thread, threads);
    steps.find_split(thread);
    steps.find_ends(thread, threads);
    steps.count_rows_by_peer(thread, threads);
    hash(2, thread, threads);
  });
  group.each([&](int32_t thread, int32_t threads) {
    steps.sum_entries(thread, threads);
    steps.grow_groups(thread);
    steps.move_dispatch_rows(thread, threads);
    steps.list_runs(thread, threads);
    hash(3, thread, threads);
  });
  group.each([&](int32_t thread, int32_t threads) {
    steps.scan_entries(thread, threads);
    steps.sum_runs(thread, threads);
    steps.list_stored_runs(thread, threads);
    hash(4, thread, threads);
  });
  group.each([&](int32_t thread, int32_t threads) {
    steps.scan_runs(thread, threads);
    steps.fill_order(thread, threads);
    hash(5, thread, threads);
  });
  group.each([&](int32_t thread, int32_t threads) {
    steps.fill_pieces(thread, threads);
    hash(6, thread, threads);
    if (thread == threads - 1) steps.write_head(scratch.notes->fingerprint);
  });
  return {.bands = steps.bands(), .pieces = steps.pieces(), .too_large = steps.too_large()};
}

}  // namespace tileoverlap
