#include "execute/cpu_engine.hpp"

#include <algorithm>

#include "consume/cpu_consumer.hpp"
#include "core/text.hpp"
#include "dispatch/cpu_dispatch.hpp"
#include "execute/thread_name.hpp"
#include "reduce/cpu_reduce.hpp"

namespace tileoverlap {
namespace {

WorkspaceLayout layout_for(const EngineOptions& options) {
  int64_t input_bytes = 0;  // the same on all ranks, as symmetric memory asks
  for (int32_t rank = 0; options.input_width > 0 && rank < options.placement.world(); ++rank) {
    const SizeReport report = size_report(options.placement, rank, options.capacity, options.dtype,
                                          options.input_width, options.n, options.plan);
    input_bytes = std::max(input_bytes, report.input_bytes);
  }
  const SizeReport report =
      size_report(options.placement, 0, options.capacity, options.dtype, options.k, options.n, options.plan);
  return WorkspaceLayout::make(options.placement.world(), report.staging_bytes, input_bytes);
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
    : scratch(options.plan.tile_m, options.plan.tile_n,
              options.first_width > 0 ? std::max(options.k, options.input_width) : options.k, faults, seed),
      sum(static_cast<size_t>(options.n)) {}

CpuEngine::CpuEngine(const std::shared_ptr<Transport>& transport, const CpuOptions& cpu, EngineOptions options)
    : rank_(transport->rank()),
      cpu_(cpu),
      options_(std::move(options)),
      rows_capacity_(max_bands(options_.placement, rank_, options_.capacity, options_.plan) * options_.plan.tile_m),
      layout_(layout_for(options_)),
      memory_(transport->allocate(options_.terms, static_cast<size_t>(layout_.total))),
      exchange_(transport->open_exchange()),
      own_{memory_->local(), &layout_},
      output_(zeroed_bytes(static_cast<size_t>(rows_capacity_ * options_.n * size_of(options_.dtype)))),
      projected_(zeroed_bytes(
          static_cast<size_t>(options_.first_width > 0 ? rows_capacity_ * options_.k * size_of(options_.dtype) : 0))),
      flags_(rows_capacity_ / options_.plan.tile_m, static_cast<int32_t>(ceil_div(options_.n, options_.plan.tile_n))),
      recorder_(options_.record_timeline, rank_, worker_names(cpu)),
      watch_(rank_, own_),
      epoch_(cpu.faults.first_epoch),
      returned_(static_cast<size_t>(layout_.world)),
      dispatched_(static_cast<size_t>(layout_.world)),
      driver_delay_(cpu.faults.max_delay_us, worker_seed(cpu.faults, rank_, -1)),
      producers_(text("tov", rank_, "-prod"), cpu.producer_threads),
      consumers_(text("tov", rank_, "-cons"), cpu.consumer_threads) {
  for (int32_t i = 0; i < cpu.producer_threads; ++i) {
    workers_.emplace_back(options_, cpu.faults, worker_seed(cpu.faults, rank_, i));
  }
  for (int32_t i = 0; i < cpu.consumer_threads; ++i) {
    consumer_delays_.emplace_back(cpu.faults.max_delay_us,
                                  worker_seed(cpu.faults, rank_, cpu.producer_threads + i));
  }
  for (int32_t peer = 0; peer < layout_.world; ++peer) {
    own_.word(Word::kCredit, peer).store(cpu.faults.first_epoch, std::memory_order_relaxed);
    own_.word(Word::kDispatchCredit, peer).store(cpu.faults.first_epoch, std::memory_order_relaxed);
  }
  poison(own_.staging(), layout_.total - layout_.staging);  // staging and input
  poison(output_.get(), rows_capacity_ * options_.n * size_of(options_.dtype));
  // Release: the part is initialised before peers write into it. Pairs with the acquire in connect().
  own_.ready().store(1, std::memory_order_release);
  driver_ = std::thread([this] {
    name_this_thread(text("tov", rank_, "-driver"));
    drive();
  });
}

CpuEngine::~CpuEngine() {
  {
    const std::scoped_lock lock(queue_mutex_);
    stop_ = true;
    if (submitted_ != completed_) watch_.cancel();
  }
  queue_changed_.notify_all();
  driver_.join();
  // Peers that this rank has not met in a call are told as well, as far as they are there.
  std::vector<RankMemory> peers;
  for (int32_t peer = 0; peer < layout_.world; ++peer) peers.push_back({memory_->peer(peer), &layout_});
  watch_.connect(std::move(peers));
  watch_.close();
}

SizeReport CpuEngine::sizes() const {
  const EngineOptions& o = options_;
  return size_report(o.placement, rank_, o.capacity, o.dtype, o.input_width > 0 ? o.input_width : o.k, o.n, o.plan);
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
  check();
  if (refused) std::rethrow_exception(refused);
}

void CpuEngine::check() const {
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
    } catch (...) {
      refused = std::current_exception();
    }
    call = nullptr;  // what it borrows is free before anybody is told that it has completed
    lock.lock();
    if (refused && !refused_) refused_ = refused;
    ++completed_;
    queue_changed_.notify_all();
  }
}

bool CpuEngine::begin_call() {
  recorder_.clear();
  const uint64_t next = epoch() + 1;
  watch_.begin(next, peers_.empty() ? options_.warmup_timeout_ns : options_.timeout_ns);
  if (watch_.stopped()) return false;
  return !peers_.empty() || connect();
}

void CpuEngine::begin_epoch() { epoch_.fetch_add(1, std::memory_order_relaxed); }

bool CpuEngine::connect() {
  std::vector<RankMemory> peers;
  for (int32_t peer = 0; peer < layout_.world; ++peer) {
    const auto prepared = [&] {
      const RankMemory part{memory_->peer(peer), &layout_};
      return part.base != nullptr && part.ready().load(std::memory_order_acquire) == 1;
    };
    if (!watch_.wait({.what = WaitFor::kMemory, .peer = peer}, prepared, [](WaitRecord&) {})) return false;
    peers.push_back({memory_->peer(peer), &layout_});
  }
  peers_ = peers;
  watch_.connect(std::move(peers));
  return true;
}

bool CpuEngine::wait_for_arrivals(Word word, WaitFor what, std::span<const int64_t> rows, int64_t row_bytes,
                                  std::vector<uint64_t>& totals) {
  // All totals move first: a call that fails half-way is the session's last, but its records must be right.
  std::vector<uint64_t> before = totals;
  for (size_t peer = 0; peer < totals.size(); ++peer) {
    if (static_cast<int32_t>(peer) != rank_) totals[peer] += static_cast<uint64_t>(rows[peer] * row_bytes);
  }
  for (size_t peer = 0; peer < totals.size(); ++peer) {
    if (totals[peer] == before[peer]) continue;
    const auto arrived = own_.word(word, static_cast<int32_t>(peer));
    // Acquire: pairs with the peer's release that counted the bytes; the rows can be read.
    const auto complete = [&] { return arrived.load(std::memory_order_acquire) >= totals[peer]; };
    const auto observe = [&](WaitRecord& record) {
      record.seen = arrived.load(std::memory_order_relaxed) - before[peer];
      record.expected = totals[peer] - before[peer];
    };
    if (!watch_.wait({.what = what, .peer = static_cast<int32_t>(peer)}, complete, observe)) return false;
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
    producers_.start([&task](int32_t) { dispatch_rows(task); });
    producers_.join();
    publish_dispatch(task, driver_delay_);
    return true;
  });
  return sent && recorder_.span(kDriver, Span::kDispatchWait, -1, -1, [&] {
    return wait_for_arrivals(Word::kDispatched, WaitFor::kDispatchArrival, plan.dispatched_rows,
                             x.shape[1] * size_of(options_.dtype), dispatched_);
  });
}

void CpuEngine::produce(ProduceTask& task, bool join) {
  tile_ticket_ = 0;
  task.ticket = &tile_ticket_;
  task.recorder = &recorder_;
  task.epoch = epoch();
  producers_.start([this, task](int32_t worker) {
    produce_tiles(task, kDriver + 1 + worker, workers_[static_cast<size_t>(worker)].scratch);
  });
  if (join) producers_.join();
}

void CpuEngine::first_projection(const PlanData& plan, const TensorView& up, ExpertKind kind) {
  first_order_.set(static_cast<int64_t>(plan.order.size()) * column_tiles(plan, options_.k),
                   cpu_.faults.shuffle_seed, epoch());
  ProduceTask task{.plan = &plan,
                   .dtype = options_.dtype,
                   .rows = own_.input(),
                   .row_stride = options_.input_width,
                   .weights = up.data,
                   .expert_stride = up.strides[0],
                   .weight_stride = up.strides[1],
                   .k = options_.input_width,
                   .n = options_.k,
                   .activation = kind,
                   .output = projected_.get(),
                   .order = &first_order_,
                   .ticket = nullptr,
                   .recorder = nullptr,
                   .span = Span::kFirstProjection};
  produce(task, true);
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
                           .weights = call.weights.data,
                           .expert_stride = call.weights.strides[0],
                           .weight_stride = call.weights.strides[1],
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
  produce(produce_task, call.mode == RunMode::kSerial);  // the producer first: it waits for nobody
  consumers_.start([this, &consume_task](int32_t worker) {
    consume_segments(consume_task, kDriver + 1 + cpu_.producer_threads + worker,
                     consumer_delays_[static_cast<size_t>(worker)]);
  });
  const bool arrived = recorder_.span(kDriver, Span::kArrivalWait, -1, -1, [&] {
    return wait_for_arrivals(Word::kReturned, WaitFor::kArrival, plan.returned_rows, row_bytes, returned_);
  });
  producers_.join();
  if (arrived) recorder_.span(kDriver, Span::kReduce, -1, -1, [&] { reduce(call); });
  consumers_.join();
  if (!arrived || watch_.stopped()) return false;
  // Own rows are sent and read, staging is read: from here on they are free.
  poison(output_.get(), rows_capacity_ * row_bytes);
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
  producers_.start([this, &task](int32_t worker) {
    reduce_tokens(task, workers_[static_cast<size_t>(worker)].sum.data());
  });
  producers_.join();
}

}  // namespace tileoverlap
