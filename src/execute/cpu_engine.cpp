#include "execute/cpu_engine.hpp"

#include <algorithm>

#include "consume/cpu_consumer.hpp"
#include "core/text.hpp"
#include "dispatch/cpu_dispatch.hpp"
#include "execute/checks.hpp"
#include "reduce/cpu_reduce.hpp"
#include "tileoverlap/core/env.hpp"

namespace tileoverlap {
namespace {

WorkspaceLayout layout_for(const EngineOptions& options) {
  return WorkspaceLayout::make(
      options.placement.world(),
      {.staging = size_report(options, 0).staging_bytes, .input = largest_of_ranks(options, &SizeReport::input_bytes)});
}

// Widest tile and deepest sum of the one or two GEMMs.
int64_t scratch_columns(const EngineOptions& options) {
  const int64_t widest = has_first_projection(options) ? std::max(options.n, options.k) : options.n;
  return std::min<int64_t>(options.plan.tile_n, widest);
}

int64_t scratch_depth(const EngineOptions& options) {
  return has_first_projection(options) ? std::max(options.k, options.input_width) : options.k;
}

std::vector<std::string> worker_names(const CpuOptions& cpu) {
  std::vector<std::string> names = {"driver"};
  for (int32_t i = 0; i < cpu.producer_threads; ++i) names.push_back(text("producer ", i));
  for (int32_t i = 0; i < cpu.consumer_threads; ++i) names.push_back(text("consumer ", i));
  return names;
}

uint64_t worker_seed(const CpuFaults& faults, int32_t rank, int32_t worker) {
  return faults.shuffle_seed * 1'000'003u + static_cast<uint64_t>(rank) * 1009u + static_cast<uint64_t>(worker);
}

}  // namespace

CpuEngine::Worker::Worker(const EngineOptions& options, const CpuFaults& faults, uint64_t seed)
    : scratch(options.plan.tile_m, scratch_columns(options), scratch_depth(options),
              options.expert == ExpertKind::kSiluGate, Delay(faults.max_delay_us, seed)),
      sum(static_cast<size_t>(options.n)) {}

CpuEngine::CpuEngine(const std::shared_ptr<Transport>& transport, const CpuOptions& cpu, EngineOptions options)
    : rank_(transport->rank()),
      cpu_(cpu),
      options_(std::move(options)),
      sizes_(size_report(options_, rank_)),
      layout_(layout_for(options_)),
      output_(zeroed_bytes(static_cast<size_t>(sizes_.output_bytes))),
      projected_(zeroed_bytes(static_cast<size_t>(sizes_.projected_bytes))),
      flags_(max_bands(options_.placement, rank_, options_.capacity, options_.plan),
             static_cast<int32_t>(ceil_div(options_.n, options_.plan.tile_n))),
      recorder_(options_.record_timeline, rank_, worker_names(cpu)),
      epoch_(cpu.faults.first_epoch),
      returned_(static_cast<size_t>(layout_.world)),
      dispatched_(static_cast<size_t>(layout_.world)),
      workers_(make_workers()),
      consumer_delays_(make_consumer_delays()),
      driver_delay_(cpu.faults.max_delay_us, worker_seed(cpu.faults, rank_, -1)),
      producers_(text("tov", rank_, "-prod"), cpu.producer_threads),
      consumers_(text("tov", rank_, "-cons"), cpu.consumer_threads),
      driver_(text("tov", rank_, "-driver"), 1),
      memory_(transport->allocate(options_.terms, static_cast<size_t>(layout_.total))),
      own_{memory_->local(), &layout_},
      watch_(rank_, *memory_, layout_) {
  for (int32_t peer = 0; peer < layout_.world; ++peer) {
    own_.word(Word::kCredit, peer).store(cpu.faults.first_epoch, std::memory_order_relaxed);
    own_.word(Word::kDispatchCredit, peer).store(cpu.faults.first_epoch, std::memory_order_relaxed);
  }
  poison(own_.staging(), layout_.total - layout_.staging);  // staging and input
  poison(output_.get(), sizes_.output_bytes);
  driver_.launch([this](int32_t) { drive(); });
  // Release: the part is initialised before peers write into it. Pairs with the acquire in connect().
  own_.ready().store(RankState::kReady, std::memory_order_release);
}

CpuEngine::~CpuEngine() {
  {
    const std::scoped_lock lock(queue_mutex_);
    stop_ = true;
    if (submitted_ != completed_) watch_.cancel();
  }
  queue_changed_.notify_all();
  driver_.join();
  watch_.close();
}

std::vector<CpuEngine::Worker> CpuEngine::make_workers() const {
  const double bytes = ProducerScratch::bytes(options_.plan.tile_m, scratch_columns(options_), scratch_depth(options_),
                                              options_.expert == ExpertKind::kSiluGate);
  check_scratch(bytes, cpu_.producer_threads, options_.plan, scratch_depth(options_));
  std::vector<Worker> workers;
  for (int32_t i = 0; i < cpu_.producer_threads; ++i) {
    workers.emplace_back(options_, cpu_.faults, worker_seed(cpu_.faults, rank_, i));
  }
  return workers;
}

std::vector<Delay> CpuEngine::make_consumer_delays() const {
  std::vector<Delay> delays;
  for (int32_t i = 0; i < cpu_.consumer_threads; ++i) {
    delays.emplace_back(cpu_.faults.max_delay_us, worker_seed(cpu_.faults, rank_, cpu_.producer_threads + i));
  }
  return delays;
}

SizeReport CpuEngine::sizes() const {
  SizeReport report = sizes_;
  report.input_bytes = layout_.total - layout_.input;  // the largest of all ranks
  report.counter_bytes = layout_.staging;
  return report;
}

void CpuEngine::submit(std::function<void()> call) {
  {
    const std::scoped_lock lock(queue_mutex_);
    queue_.push_back(std::move(call));
    ++submitted_;
  }
  queue_changed_.notify_all();
}

void CpuEngine::synchronize() {
  std::exception_ptr refused;
  {
    std::unique_lock lock(queue_mutex_);
    const uint64_t target = submitted_;
    queue_changed_.wait(lock, [&] { return completed_ >= target; });
    refused = std::exchange(refused_, nullptr);
  }
  if (refused) std::rethrow_exception(refused);
  check();
}

bool CpuEngine::wait(int64_t limit_ns) {
  std::unique_lock lock(queue_mutex_);
  const uint64_t target = submitted_;
  return queue_changed_.wait_for(lock, std::chrono::nanoseconds(std::min(limit_ns, kLongestTimeoutNs)),
                                 [&] { return completed_ >= target; });
}

void CpuEngine::check() {
  watch_.stopped();  // reads what peers may have told meanwhile
  if (const auto record = watch_.failure()) throw WaitTimeout(*record, rank_);
}

void CpuEngine::drive() {
  std::unique_lock lock(queue_mutex_);
  while (true) {
    queue_changed_.wait(lock, [&] { return stop_ || !queue_.empty(); });
    if (stop_) return;
    std::function<void()> call = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    std::exception_ptr refused;
    try {
      call();
    } catch (const CallRefused&) {
      refused = std::current_exception();
    } catch (...) {
      refused = std::current_exception();
      watch_.fail(watch_.filled({.what = WaitFor::kError, .peer = rank_}));
    }
    call = nullptr;  // what it borrows is free before anybody is told that it has completed
    lock.lock();
    if (refused && !refused_) refused_ = refused;
    ++completed_;
    queue_changed_.notify_all();
  }
}

bool CpuEngine::begin_call() {
  const bool first = epoch() == cpu_.faults.first_epoch;
  watch_.begin(epoch() + 1, first ? options_.warmup_timeout_ns : options_.timeout_ns);
  if (watch_.stopped()) return false;
  return !peers_.empty() || connect();
}

void CpuEngine::begin_epoch() {
  recorder_.clear();
  epoch_.fetch_add(1, std::memory_order_relaxed);
}

bool CpuEngine::connect() {
  std::vector<RankMemory> peers;
  for (int32_t peer = 0; peer < layout_.world; ++peer) {
    const auto prepared = [&] {
      const RankMemory part = watch_.memory_of(peer);
      return part.base != nullptr && part.ready().load(std::memory_order_acquire) != RankState::kNotReady;
    };
    if (!watch_.wait({.what = WaitFor::kMemory, .peer = peer}, prepared, [](WaitRecord&) {})) return false;
    if (peer != rank_ && !watch_.meet(peer)) return false;
    peers.push_back(watch_.memory_of(peer));
  }
  peers_ = std::move(peers);
  return true;
}

bool CpuEngine::wait_for_arrivals(Word word, WaitFor what, std::span<const int64_t> rows, int64_t row_bytes,
                                  std::vector<uint64_t>& totals) {
  for (size_t peer = 0; peer < totals.size(); ++peer) {
    if (static_cast<int32_t>(peer) == rank_ || rows[peer] == 0) continue;
    const uint64_t before = totals[peer];
    totals[peer] += static_cast<uint64_t>(rows[peer] * row_bytes);
    const auto arrived = own_.word(word, static_cast<int32_t>(peer));
    // Acquire: pairs with the peer's release that counted the bytes; the rows can be read.
    const auto complete = [&] { return arrived.load(std::memory_order_acquire) >= totals[peer]; };
    const auto observe = [&](WaitRecord& record) {
      record.seen = arrived.load(std::memory_order_relaxed) - before;
      record.expected = totals[peer] - before;
    };
    if (!watch_.wait({.what = what, .peer = static_cast<int32_t>(peer)}, complete, observe)) return false;
  }
  return true;
}

bool CpuEngine::same_plans(const PlanData& plan) {
  for (int32_t peer = 0; peer < layout_.world; ++peer) {
    if (peer == rank_ || plan.returned_rows[static_cast<size_t>(peer)] == 0) continue;
    // Ordered by the acquire of the peer's arrivals. The peer sends nothing of its next call before it has our credit,
    // so the word is of this call.
    const uint64_t theirs = own_.word(Word::kPlan, peer).load(std::memory_order_relaxed);
    if (theirs == plan.fingerprint) continue;
    WaitRecord record = watch_.filled({.what = WaitFor::kSamePlan, .peer = peer});
    record.seen = theirs;
    record.expected = plan.fingerprint;
    watch_.fail(record);
    return false;
  }
  return true;
}

void CpuEngine::publish_credit(Word word) {
  for (size_t peer = 0; peer < peers_.size(); ++peer) {
    if (static_cast<int32_t>(peer) == rank_) continue;
    // Release: everything of this epoch is read before the peer overwrites it. Pairs with the peer's credit wait.
    peers_[peer].word(word, rank_).store(epoch(), std::memory_order_release);
  }
}

void CpuEngine::poison(std::byte* memory, int64_t bytes) const {
  if (cpu_.faults.poison) std::fill_n(memory, bytes, std::byte{0xFF});  // a NaN in every row type
}

bool CpuEngine::dispatch(const PlanData& plan, const CopyIndex& index, const TensorView& x) {
  token_ticket_ = 0;
  const DispatchTask task{.plan = &plan,
                          .index = &index,
                          .x = x,
                          .own = own_,
                          .peers = peers_,
                          .epoch = epoch(),
                          .ticket = &token_ticket_,
                          .watch = &watch_};
  const bool sent = recorder_.span(kDriver, Span::kDispatch, -1, -1, [&] {
    if (!wait_for_dispatch_credits(task)) return false;
    producers_.start([&task](int32_t) { dispatch_rows(task); }).join();
    publish_dispatch(task, driver_delay_);
    return true;
  });
  return sent && recorder_.span(kDriver, Span::kDispatchWait, -1, -1, [&] {
    return wait_for_arrivals(Word::kDispatched, WaitFor::kDispatchArrival, plan.dispatched_rows,
                             x.shape[1] * size_of(options_.dtype), dispatched_);
  });
}

WorkerPool::Job CpuEngine::produce(ProduceTask& task) {
  tile_ticket_ = 0;
  task.ticket = &tile_ticket_;
  task.recorder = &recorder_;
  task.epoch = epoch();
  return producers_.start([this, task](int32_t worker) {
    produce_tiles(task, kDriver + 1 + worker, workers_[static_cast<size_t>(worker)].scratch);
  });
}

void CpuEngine::first_projection(const PlanData& plan, const WeightsView& up) {
  first_order_.set(static_cast<int64_t>(plan.order.size()) * column_tiles(plan, options_.k), cpu_.faults.shuffle_seed,
                   epoch());
  ProduceTask task{.plan = &plan,
                   .dtype = options_.dtype,
                   .rows = own_.input(),
                   .row_stride = options_.input_width,
                   .weights = &up,
                   .k = options_.input_width,
                   .n = options_.k,
                   .activation = options_.expert,
                   .output = projected_.get(),
                   .order = &first_order_,
                   .ticket = nullptr,
                   .recorder = nullptr,
                   .span = Span::kFirstProjection};
  produce(task).join();
}

bool CpuEngine::return_rows(const ReturnCall& call) {
  const PlanData& plan = *call.plan;
  const int64_t row_bytes = options_.n * size_of(options_.dtype);
  tile_order_.set(static_cast<int64_t>(plan.order.size()) * plan.tiles_n, cpu_.faults.shuffle_seed, epoch());
  segment_order_.set(static_cast<int64_t>(plan.segments.size()), cpu_.faults.shuffle_seed, epoch());
  segment_ticket_ = 0;
  ProduceTask produce_task{.plan = &plan,
                           .dtype = options_.dtype,
                           .rows = call.rows,
                           .row_stride = call.row_stride,
                           .weights = &call.weights,
                           .k = options_.k,
                           .n = options_.n,
                           .output = output_.get(),
                           .flags = &flags_,
                           .withhold_band = cpu_.faults.withhold_band,
                           .order = &tile_order_,
                           .ticket = nullptr,
                           .recorder = nullptr};
  const ConsumeTask consume_task{.plan = &plan,
                                 .output = output_.get(),
                                 .row_bytes = row_bytes,
                                 .flags = &flags_,
                                 .own = own_,
                                 .peers = peers_,
                                 .epoch = epoch(),
                                 .order = &segment_order_,
                                 .ticket = &segment_ticket_,
                                 .watch = &watch_,
                                 .recorder = &recorder_};
  WorkerPool::Job producing = produce(produce_task);  // the producer first: it waits for nobody
  if (call.mode == RunMode::kSerial) producing.join();
  WorkerPool::Job consuming = consumers_.start([this, &consume_task](int32_t worker) {
    consume_segments(consume_task, kDriver + 1 + cpu_.producer_threads + worker,
                     consumer_delays_[static_cast<size_t>(worker)]);
  });
  const bool arrived = recorder_.span(kDriver, Span::kArrivalWait, -1, -1, [&] {
    return wait_for_arrivals(Word::kReturned, WaitFor::kArrival, plan.returned_rows, row_bytes, returned_) &&
           same_plans(plan);
  });
  producing.join();
  if (arrived) recorder_.span(kDriver, Span::kReduce, -1, -1, [&] { reduce(call); });
  consuming.join();
  if (!arrived || watch_.stopped()) return false;
  // Own rows are sent and read, staging is read: from here on they are free.
  poison(output_.get(), sizes_.output_bytes);
  poison(own_.staging(), layout_.input - layout_.staging);
  publish_credit(Word::kCredit);
  if (options_.input_width > 0) {
    poison(own_.input(), layout_.total - layout_.input);
    publish_credit(Word::kDispatchCredit);
  }
  return true;
}

void CpuEngine::reduce(const ReturnCall& call) {
  token_ticket_ = 0;
  token_order_.set(reduce_chunks(call.index->tokens), cpu_.faults.shuffle_seed, epoch());
  const ReduceTask task{.index = call.index,
                        .staging_rows = call.plan->staging_rows,
                        .staging = own_.staging(),
                        .output = output_.get(),
                        .weights = call.topk_weights,
                        .out = call.out,
                        .order = &token_order_,
                        .ticket = &token_ticket_};
  producers_
      .start([this, &task](int32_t worker) { reduce_tokens(task, workers_[static_cast<size_t>(worker)].sum.data()); })
      .join();
}

}  // namespace tileoverlap
