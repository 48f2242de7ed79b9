#include "execute/cuda_engine.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>
#include <thread>

#include "consume/ship_lanes.hpp"
#include "core/device_query.hpp"
#include "core/nvtx.hpp"
#include "core/relaxed_capture.hpp"
#include "core/text.hpp"
#include "execute/choose_producer.hpp"
#include "execute/device_timeline.hpp"
#include "plan/build_pieces.hpp"
#include "produce/owner_entries.hpp"
#include "reduce/weighted_sum.hpp"
#include "routing/id_report.hpp"
#include "tileoverlap/core/env.hpp"
#include "tileoverlap/predict/gpu_rates.hpp"

namespace tileoverlap {
namespace {

WorkspaceLayout layout_for(const EngineOptions& options, const LinkKernels& kernels) {
  WorkspaceSizes sizes{.staging = size_report(options, 0).staging_bytes,
                       .input = largest_of_ranks(options, &SizeReport::input_bytes)};
  if (options.input_width > 0) sizes.vote = vote_bytes(options.placement.experts());
  if (kernels.sources_in_part) {
    sizes.output = largest_of_ranks(options, &SizeReport::output_bytes);
    sizes.outgoing = options.capacity.max_tokens * options.input_width * size_of(options.dtype);
  }
  return WorkspaceLayout::make(options.placement.world(), sizes);
}

const LinkKernels& kernels_of(const Transport& transport) {
  const RemoteLink* link = transport.remote_link();
  return link == nullptr ? peer_kernels() : *link->kernels;
}

int32_t tiles_across(const EngineOptions& options) {
  return static_cast<int32_t>(ceil_div(options.n, options.plan.tile_n));
}

DevicePlanLayout plan_layout_for(const EngineOptions& options, int32_t rank, int64_t piece_rows) {
  const int64_t bands = max_bands(options.placement, rank, options.capacity, options.plan);
  const int64_t tiles = bands * std::max<int64_t>(tiles_across(options), ceil_div(options.k, kNarrowestTile));
  if (tiles > std::numeric_limits<int32_t>::max()) {
    throw InvalidArgument(text("rank ", rank, " may have ", bands,
                               " bands, too many tiles for a GPU kernel (2^31): "
                               "max_tokens or the widths are too large"));
  }
  return DevicePlanLayout::make(options.placement.world(), options.placement.experts(),
                                options.placement.experts_on(rank), bands,
                                max_pieces(options.placement, rank, options.capacity, options.plan, piece_rows));
}

// What the caller has fixed, or else what is predicted to be fastest.
CommSms comm_sms_of(const Transport& transport, const CudaOptions& cuda, const EngineOptions& options,
                    const SmShare& share) {
  if (cuda.comm_sms > 0) return CommSms(cuda.comm_sms);
  const int32_t device = transport.device().device_id;
  PredictQuery query{.placement = options.placement,
                     .k = options.k,
                     .n = options.n,
                     .element_bytes = size_of(options.dtype),
                     .plan = options.plan,
                     .sms = share.sms,
                     .gpu = gpu_rates(device_name(device), capability_of(device), share.device_sms)};
  query.gpu.lanes = ship_lanes(device);
  if (transport.ranks_on_device() == transport.world())
    query.link.gbs = 0;  // memory of this GPU, which SMs cannot fill
  return CommSms(query, transport.rank(), options.capacity.max_tokens * options.capacity.top_k);
}

uint64_t hash_of(const std::string& terms, size_t bytes) {
  uint64_t hash = 0xcbf29ce484222325u ^ bytes;
  for (const char c : terms) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

}  // namespace

CudaEngine::CudaEngine(const std::shared_ptr<Transport>& transport, const CudaOptions& cuda, EngineOptions options)
    : rank_(transport->rank()),
      device_(transport->device()),
      cuda_(cuda),
      options_(std::move(options)),
      share_(share_of(cuda, device_.device_id, transport->ranks_on_device())),
      comm_sms_(comm_sms_of(*transport, cuda, options_, share_)),
      sizes_(size_report(options_, rank_)),
      kernels_(kernels_of(*transport)),
      layout_(layout_for(options_, kernels_)),
      rows_(max_rows(options_.placement, rank_, options_.capacity, options_.plan)),
      tiles_n_(tiles_across(options_)),
      piece_rows_(piece_rows(row_bytes(), options_.plan.tile_m)),
      plan_layout_(plan_layout_for(options_, rank_, piece_rows_)),
      index_layout_(
          IndexLayout::make(options_.capacity.max_tokens * options_.capacity.top_k, options_.placement.experts())),
      producer_(returned_producer(options_.dtype, options_.plan, device_.device_id)),
      first_producer_(first_producer(options_, device_.device_id)),
      terms_(hash_of(options_.terms, static_cast<size_t>(layout_.total))),
      epoch_(cuda.faults.first_epoch) {
  const int32_t device = device_.device_id;
  const DeviceGuard guard(device);
  check_transfer();
  load_kernels();
  const auto bytes = [&](int64_t size) { return DeviceBytes(device, static_cast<size_t>(size)); };
  const int32_t world = layout_.world, experts = options_.placement.experts();
  const int64_t tiles = plan_layout_.max_bands * tiles_n_;
  if (!kernels_.sources_in_part) output_ = bytes(sizes_.output_bytes);
  projected_ = bytes(sizes_.projected_bytes);
  flags_ = bytes(tiles * static_cast<int64_t>(sizeof(uint64_t)));
  plan_ = bytes(plan_layout_.total);
  control_ = bytes(sizeof(Control));
  parts_ = bytes(world * static_cast<int64_t>(sizeof(std::byte*)));
  totals_ = bytes(2 * world * static_cast<int64_t>(sizeof(uint64_t)));
  if (options_.record_timeline) {
    tile_stamps_ = bytes(tiles * static_cast<int64_t>(sizeof(TileStamp)));
    piece_stamps_ = bytes(plan_layout_.max_pieces * static_cast<int64_t>(sizeof(PieceStamp)));
    call_stamps_ = bytes(sizeof(CallStamps));
  }
  status_ = PinnedBytes(device, sizeof(Status));
  new (status_.host()) Status;
  const StreamPriorities priorities = stream_priorities();
  comm_ = Stream(device, priorities.greatest);
  host_ = Stream(device, priorities.least);
  begun_ = Event(device);
  sent_ = Event(device);
  done_ = Event(device);
  const int32_t local = options_.placement.experts_on(rank_);
  if (!has_dispatch()) uploads_ = UploadRing(device, static_cast<size_t>(plan_layout_.total));
  weight_table_ = WeightTable(device, *producer_, local);
  if (first_producer_ != nullptr) first_table_ = WeightTable(device, *first_producer_, local);
  const std::vector<int32_t>& begins = options_.placement.expert_begin();
  begins_ = bytes(static_cast<int64_t>(begins.size() * sizeof(int32_t)));
  write(begins_, begins.data(), begins.size() * sizeof(int32_t));
  if (const RemoteLink* link = transport->remote_link(); link != nullptr) {
    pes_ = bytes(world * static_cast<int64_t>(sizeof(int32_t)));
    write(pes_, link->pes.data(), link->pes.size() * sizeof(int32_t));
  }
  index_ = bytes(index_layout_.total);
  if (has_dispatch()) planner_ = bytes(PlannerLayout::make(world, experts, local).total);

  // What can fail has happened before peers see anything.
  memory_ = transport->allocate(options_.terms, static_cast<size_t>(layout_.total));
  map_peers();
  poison_buffers(host_.get());
  kernels_.open_session(device_world(options_.warmup_timeout_ns), epoch_, host_.get());
  host_.synchronize();
}

CudaEngine::~CudaEngine() {
  try {
    const DeviceGuard guard(device_.device_id);
    if (called_) cuda_ignore(cudaEventSynchronize(done_.get()));
    cuda_ignore(cudaStreamSynchronize(comm_.get()));
    map_peers();
    kernels_.close_session(device_world(0), host_.get());
    host_.synchronize();
  } catch (const Error&) {  // the device is lost: there is nobody to tell
  }
}

void CudaEngine::load_kernels() const {
  producer_->load();
  if (first_producer_ != nullptr) first_producer_->load();
  kernels_.load(has_dispatch());
  cuda_check(load_index_copies(), "loading the copy index");
  load_weighted_sum();
}

void CudaEngine::write(const DeviceBytes& to, const void* from, size_t bytes) const {
  cuda_check(cudaMemcpyAsync(to.data(), from, bytes, cudaMemcpyHostToDevice, host_.get()), "writing to the device");
  host_.synchronize();
}

DeviceWorld CudaEngine::device_world(int64_t limit_ns) const {
  return {.layout = layout_,
          .rank = rank_,
          .parts = reinterpret_cast<std::byte* const*>(parts_.data()),
          .pes = reinterpret_cast<const int32_t*>(pes_.data()),
          .terms = terms_,
          .control = reinterpret_cast<Control*>(control_.data()),
          .status = reinterpret_cast<Status*>(status_.device_pointer()),
          .limit_ns = limit_ns};
}

int64_t CudaEngine::limit_ns() const {
  const bool first = epoch() <= cuda_.faults.first_epoch + 1;
  return first ? options_.warmup_timeout_ns : options_.timeout_ns;
}

DeviceWorld CudaEngine::world() const { return device_world(limit_ns()); }

// All ranks' parts, as far as they are there; true if all are.
bool CudaEngine::map_peers() {
  std::vector<const std::byte*> parts;
  for (int32_t peer = 0; peer < layout_.world; ++peer) parts.push_back(memory_->peer(peer));
  write(parts_, parts.data(), parts.size() * sizeof(parts[0]));
  // Over a link all memory has been there since allocate(); null is what only the link reaches.
  return pes_.data() != nullptr || std::find(parts.begin(), parts.end(), nullptr) == parts.end();
}

void CudaEngine::connect(cudaStream_t stream) {
  if (connected_) return;
  refuse_capture(stream, "the first call of a session meets its peers: make one call before");
  const auto begin = std::chrono::steady_clock::now();
  while (!map_peers()) {
    if (std::chrono::steady_clock::now() - begin >= std::chrono::nanoseconds(options_.warmup_timeout_ns)) {
      int32_t missing = 0;
      while (memory_->peer(missing) != nullptr) ++missing;
      throw WaitTimeout({.what = WaitFor::kMemory,
                         .rank = rank_,
                         .peer = missing,
                         .epoch = epoch() + 1,
                         .timeout_ns = options_.warmup_timeout_ns},
                        rank_);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  if (stores()) describe_owners();
  connected_ = true;
}

bool CudaEngine::is_captured(cudaStream_t stream) {
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  cuda_check(cudaStreamIsCapturing(stream, &capture), "asking whether the stream is being captured");
  return capture != cudaStreamCaptureStatusNone;
}

void CudaEngine::refuse_capture(cudaStream_t stream, const char* reason) {
  if (is_captured(stream)) {
    throw InvalidArgument(text("this call cannot be captured in a graph: ", reason));
  }
}

void CudaEngine::check() {
  const auto& status = *reinterpret_cast<const Status*>(status_.host());
  // Acquire: pairs with the device's release in DeviceWatch::report; the record is there.
  if (__atomic_load_n(&status.failed, __ATOMIC_ACQUIRE) != 0) throw WaitTimeout(status.record, rank_);
}

void CudaEngine::begin_call(cudaStream_t stream) {
  check();
  connect(stream);
  // Calls complete in order, on whatever streams. A graph is launched behind what its launcher says, and knows of no
  // event outside of it.
  if (called_ && !is_captured(stream)) done_.hold(stream);
  ++epoch_;
  const NvtxRange range("tileoverlap.begin");
  kernels_.begin_call(world(), stamps(), stream);
}

void CudaEngine::upload(const Plan& plan, cudaStream_t stream) {
  if (uploaded_.has_value() && &**uploaded_ == &*plan) return;
  const NvtxRange range("tileoverlap.plan");
  std::byte* image = uploads_.next();
  write_plan(*plan, piece_rows_, plan_layout_, image);
  const auto part = [&](int64_t begin, int64_t end) {
    uploads_.copy(plan_.data() + begin, static_cast<size_t>(begin), static_cast<size_t>(end - begin), stream);
  };
  const auto& head = *reinterpret_cast<const PlanHead*>(image + plan_layout_.head);
  part(0, plan_layout_.order + head.bands * static_cast<int64_t>(sizeof(ScheduledBand)));
  part(plan_layout_.pieces, plan_layout_.pieces + head.pieces * static_cast<int64_t>(sizeof(Piece)));
  uploads_.done(stream);
  uploaded_ = plan;
}

void CudaEngine::first_projection(const WeightsView& up, cudaStream_t stream) {
  if (first_producer_ == nullptr || rows_ == 0) return;
  const NvtxRange range("tileoverlap.produce first projection");
  const bool gated = options_.expert == ExpertKind::kSiluGate;
  GemmTask task = gemm_task();
  task.k = options_.input_width;
  task.n = options_.k;
  task.input = memory_->local() + layout_.input;
  task.input_stride = options_.input_width;
  task.weights = weights_of(first_table_, up, task.n, task.k, gated, stream);
  task.output = projected_.data();
  task.output_stride = options_.k;
  task.ctas = share_.sms;  // nothing runs beside it
  first_producer_->launch(task, stream);
}

GemmTask CudaEngine::gemm_task() const {
  const DevicePlan plan = device_plan();
  return {.head = plan.head,
          .order = plan.order,
          .first_expert = options_.placement.begin(rank_),
          .experts = options_.placement.experts_on(rank_),
          .rows = rows_};
}

// Kernels step over a tensor's experts by one stride; a gated kernel also steps from gate to up by half of it.
ExpertWeights CudaEngine::weights_of(WeightTable& table, const WeightsView& weights, int64_t n, int64_t k, bool gated,
                                     cudaStream_t stream) {
  const bool even = weights.matrices.empty() && (!gated || weights.expert_stride == 2 * n * weights.row_stride);
  if (even) {
    return {.tensor = weights.data, .expert_stride = weights.expert_stride, .row_stride = weights.row_stride};
  }
  std::vector<const void*> matrices = weights.matrices;
  for (int32_t expert = 0; weights.matrices.empty() && expert < options_.placement.experts_on(rank_); ++expert) {
    matrices.push_back(weights.matrix(expert, options_.dtype));
  }
  if (!table.holds(matrices, weights.row_stride)) {
    refuse_capture(stream, "a table of these weights has to be made: make one call with them before");
  }
  return {.row_stride = weights.row_stride, .table = table.update(matrices, weights.row_stride, k, n, stream)};
}

void CudaEngine::return_rows(const DeviceReturn& call, cudaStream_t stream) {
  PublishTask publish{.flags = reinterpret_cast<uint64_t*>(flags_.data()),
                      .epoch = &reinterpret_cast<const Control*>(control_.data())->epoch,
                      .stamps = reinterpret_cast<TileStamp*>(tile_stamps_.data()),
                      .withheld_band = cuda_.faults.withhold_band};
  if (call.mode != RunMode::kOverlapped) {
    produce(call, publish, {}, share_.sms, stream);
    index_rows(call, stream);
    ship_rows(call, stream);
    return;
  }
  const cudaStream_t comm = comm_.get();
  if (stores()) await(WaitFor::kCredit, stream);
  begun_.record(stream);
  if (stores()) {
    begun_.hold(comm);
    index_rows(call, comm);  // first: the GEMM leaves no SM free
    publish.flags = nullptr;
    produce(call, publish, store_task(), share_.sms, stream);
    // What was dispatched to this rank goes back. Behind the GEMM and not behind each tile: a fence for other devices
    // in every tile costs the GEMM 2 to 6 % (measured), and owners sum when all ranks have ended.
    if (cuda_.faults.withhold_band < 0) {
      kernels_.count_sent(world(), Word::kReturned, device_plan().dispatched_rows, row_bytes(), stream);
    }
  } else {
    const int32_t sms = share_.sms - comm_sms_.of_call(call.copies());
    produce(call, publish, {}, sms, stream);  // first: it waits for nobody
    begun_.hold(comm);
    index_rows(call, comm);
    ship_rows(call, comm);
  }
  sent_.record(comm);
  sent_.hold(stream);
}

void CudaEngine::produce(const DeviceReturn& call, const PublishTask& publish, const StoreTask& store, int32_t ctas,
                         cudaStream_t stream) {
  last_ctas_ = ctas;
  last_lanes_ = store.runs == nullptr ? comm_sms_.of_call(call.copies()) * ship_lanes(device_.device_id) : 0;
  GemmTask task = gemm_task();
  task.rows = std::min(rows_, call.rows_there);
  if (task.rows == 0) return;
  const NvtxRange range("tileoverlap.produce");
  task.k = options_.k;
  task.n = options_.n;
  task.input = call.rows;
  task.input_stride = call.row_stride;
  task.weights = weights_of(weight_table_, call.weights, task.n, task.k, false, stream);
  task.output = output();
  task.output_stride = options_.n;
  task.publish = publish;
  task.store = store;
  task.ctas = ctas;
  producer_->launch(task, stream);
}

// Where there is a dispatch, it has done this.
void CudaEngine::index_rows(const DeviceReturn& call, cudaStream_t stream) {
  if (has_dispatch()) return;
  const NvtxRange range("tileoverlap.dispatch index");
  const IndexTask index = index_task(call.ids);
  cuda_check(count_copies(index.counted, stream), "launching count_copies");
  cuda_check(scan_chunks(index.counted, stream), "launching scan_chunks");
  cuda_check(index_copies(index, stream), "launching index_copies");
}

void CudaEngine::ship_rows(const DeviceReturn& call, cudaStream_t stream) {
  const NvtxRange range("tileoverlap.consume");
  kernels_.ship_rows({.world = world(),
                      .plan = device_plan(),
                      .flags = reinterpret_cast<const uint64_t*>(flags_.data()),
                      .tiles_n = tiles_n_,
                      .output = output(),
                      .row_bytes = row_bytes(),
                      .stamps = reinterpret_cast<PieceStamp*>(piece_stamps_.data()),
                      .disorder = {.seed = cuda_.faults.shuffle_seed, .max_delay_us = cuda_.faults.max_delay_us}},
                     comm_sms_.of_call(call.copies()), stream);
}

void CudaEngine::check_transfer() const {
  if (!stores()) return;
  if (kernels_.sources_in_part) {
    throw InvalidArgument(text("transfer = store needs the memory of all peers to be mapped, rank ", rank_,
                               " reaches some by NVSHMEM's puts alone; transfer = ship works there"));
  }
  if (producer_->owner_entry_bytes() == 0) {
    throw InvalidArgument(text("transfer = store is for GPUs of compute capability 9.0, and ", producer_->name(),
                               ", the kernel for cuda:", device_.device_id,
                               ", does not have it; transfer = ship works"));
  }
  constexpr int64_t kMostRows = std::numeric_limits<int32_t>::max();
  if (staging_rows() > kMostRows || rows_ > kMostRows) {
    throw InvalidArgument(text("transfer = store counts rows in 32 bits, rank ", rank_, " may have ",
                               std::max(staging_rows(), rows_), " (2^31 - 1 at most); transfer = ship works"));
  }
}

// Once all peers' memory is known.
void CudaEngine::describe_owners() {
  std::vector<OwnerRows> owners;
  for (int32_t owner = 0; owner < layout_.world; ++owner) {
    owners.push_back({const_cast<std::byte*>(memory_->peer(owner)) + layout_.staging, staging_rows()});
  }
  owners[static_cast<size_t>(rank_)] = {output(), rows_};
  const std::vector<std::byte> entries = owner_entries(*producer_, owners, options_.n);
  owners_ = DeviceBytes(device_.device_id, entries.size());
  write(owners_, entries.data(), entries.size());
}

StoreTask CudaEngine::store_task() const {
  return {.runs = device_plan().runs,
          .run_count = options_.placement.experts_on(rank_) * layout_.world,
          .rank = rank_,
          .maps = owners_.data()};
}

void CudaEngine::await(WaitFor what, cudaStream_t stream) {
  const DevicePlan plan = device_plan();
  const bool returned = what == WaitFor::kArrival;
  auto* totals = reinterpret_cast<uint64_t*>(totals_.data());
  kernels_.await_peers({.world = world(),
                        .what = what,
                        // What leaves by kCredit is what was dispatched to this rank.
                        .rows = returned ? plan.returned_rows : plan.dispatched_rows,
                        .row_bytes = returned ? row_bytes() : options_.input_width * size_of(options_.dtype),
                        .totals = returned ? totals : totals + layout_.world,
                        .plan = plan.head,
                        .stamps = returned ? stamps() : nullptr},
                       stream);
}

void CudaEngine::vote(const TensorView& ids, cudaStream_t stream) {
  const NvtxRange range("tileoverlap.routing");
  const CountTask counted = count_task(ids);
  cuda_check(count_copies(counted, stream), "launching count_copies");
  cuda_check(scan_chunks(counted, stream), "launching scan_chunks");
  kernels_.cast_counts({.world = world(), .counts = counted.totals, .experts = counted.experts, .ids = counted.report},
                       stream);
}

void CudaEngine::refuse(const std::string& reason, cudaStream_t stream) {
  kernels_.cast_refusal(world(), reason, stream);
}

void CudaEngine::plan(cudaStream_t stream) {
  const NvtxRange range("tileoverlap.plan");
  kernels_.plan_call(plan_task(), stream);
}

CountTask CudaEngine::count_task(const TensorView& ids) const {
  const auto ints = [&](int64_t offset) { return reinterpret_cast<int32_t*>(index_.data() + offset); };
  return {.ids = ids.data,
          .id_dtype = ids.dtype,
          .id_stride = ids.strides[0],
          .tokens = ids.shape[0],
          .top_k = options_.capacity.top_k,
          .experts = options_.placement.experts(),
          .chunks = ints(index_layout_.chunks),
          .totals = ints(index_layout_.totals),
          .report = id_report()};
}

IndexTask CudaEngine::index_task(const TensorView& ids) const {
  const auto rows = [&](int64_t offset) { return reinterpret_cast<int64_t*>(index_.data() + offset); };
  return {.counted = count_task(ids),
          .plan = device_plan(),
          .expert_begin = reinterpret_cast<const int32_t*>(begins_.data()),
          .rank = rank_,
          .world = layout_.world,
          .gather_row = rows(index_layout_.gather_row),
          .peer = has_dispatch() ? reinterpret_cast<int32_t*>(index_.data() + index_layout_.peer) : nullptr,
          .dispatch_row = has_dispatch() ? rows(index_layout_.dispatch_row) : nullptr};
}

PlanCallTask CudaEngine::plan_task() const {
  const int32_t world_size = layout_.world, experts = options_.placement.experts();
  return {.world = world(),
          .input = {.rank = rank_,
                    .world = world_size,
                    .experts = experts,
                    .n = static_cast<int32_t>(options_.n),
                    .options = options_.plan,
                    .expert_begin = reinterpret_cast<const int32_t*>(begins_.data()),
                    .piece_rows = piece_rows_,
                    .max_bands = plan_layout_.max_bands,
                    .max_pieces = plan_layout_.max_pieces},
          .scratch_layout = PlannerLayout::make(world_size, experts, options_.placement.experts_on(rank_)),
          .scratch = planner_.data(),
          .plan = device_plan()};
}

void CudaEngine::send_rows(const TensorView& x, const TensorView& ids, cudaStream_t stream) {
  const NvtxRange range("tileoverlap.dispatch");
  const IndexTask index = index_task(ids);
  cuda_check(index_copies(index, stream), "launching index_copies");
  await(WaitFor::kDispatchCredit, stream);
  const int64_t row_bytes = options_.input_width * size_of(options_.dtype);
  const std::byte* from = x.data;
  int64_t stride = x.strides[0] * size_of(x.dtype);
  if (kernels_.sources_in_part && x.shape[0] > 0) {
    std::byte* outgoing = memory_->local() + layout_.outgoing;
    const auto size = [](int64_t bytes) { return static_cast<size_t>(bytes); };
    cuda_check(cudaMemcpy2DAsync(outgoing, size(row_bytes), from, size(stride), size(row_bytes), size(x.shape[0]),
                                 cudaMemcpyDeviceToDevice, stream),
               "copying the tokens to where they leave from");
    from = outgoing;
    stride = row_bytes;
  }
  kernels_.push_rows({.world = world(),
                      .x = from,
                      .x_stride_bytes = stride,
                      .row_bytes = row_bytes,
                      .tokens = x.shape[0],
                      .top_k = options_.capacity.top_k,
                      .peer = index.peer,
                      .dispatch_row = index.dispatch_row},
                     share_.sms, stream);
  // What goes out comes back.
  kernels_.count_sent(world(), Word::kDispatched, device_plan().returned_rows, row_bytes, stream);
}

void CudaEngine::receive_rows(cudaStream_t stream) { await(WaitFor::kDispatchArrival, stream); }

void CudaEngine::reduce(const DeviceReturn& call, cudaStream_t stream) {
  const NvtxRange range("tileoverlap.reduce");
  const DevicePlan plan = device_plan();
  await(WaitFor::kArrival, stream);
  const TensorView& weights = call.topk_weights;
  weighted_sum({.world = world(),
                .dtype = options_.dtype,
                .tokens = call.out.shape[0],
                .n = options_.n,
                .top_k = options_.capacity.top_k,
                .gather_row = index_task(call.ids).gather_row,
                .staging_rows = &plan.head->staging_rows,
                .staging = memory_->local() + layout_.staging,
                .output = output(),
                .weights = reinterpret_cast<const float*>(weights.data),
                .weight_stride = weights.strides[0],
                .out = call.out.data,
                .out_stride = call.out.strides[0],
                .refused_by = &plan.head->refused_by},
               share_.sms, stream);
}

void CudaEngine::end_call(cudaStream_t stream) {
  if (cuda_.faults.poison) {
    // Own rows are sent and read, staging is read: from here on they are free.
    poison_buffers(stream);
  }
  kernels_.finish_call({.world = world(),
                        .dispatched = has_dispatch(),
                        .ids = has_dispatch() ? nullptr : id_report(),
                        .stamps = stamps()},
                       stream);
  if (is_captured(stream)) return;
  done_.record(stream);
  called_ = true;
}

void CudaEngine::poison_buffers(cudaStream_t stream) const {
  poison(memory_->local() + layout_.staging, layout_.total - layout_.staging, stream);
  poison(output_.data(), static_cast<int64_t>(output_.bytes()), stream);
  poison(projected_.data(), sizes_.projected_bytes, stream);
}

void CudaEngine::poison(std::byte* memory, int64_t bytes, cudaStream_t stream) const {
  if (!cuda_.faults.poison || bytes == 0) return;
  constexpr int kNan = 0xff;  // NaN in every row type
  cuda_check(cudaMemsetAsync(memory, kNan, static_cast<size_t>(bytes), stream), "poisoning");
}

void CudaEngine::synchronize() {
  const DeviceGuard guard(device_.device_id);
  if (called_) cuda_check(cudaEventSynchronize(done_.get()), "waiting for the calls");
  check();
  throw_refusal();
}

bool CudaEngine::wait(int64_t limit_ns) {
  const RelaxedCapture relaxed;  // asks for work that no capture is about
  const auto begin = std::chrono::steady_clock::now();
  const auto limit = std::chrono::nanoseconds(std::min(limit_ns, kLongestTimeoutNs));
  while (called_ && !done_.reached()) {
    if (std::chrono::steady_clock::now() - begin >= limit) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  return true;
}

// What a call of a layer was refused for, once; the layer stays usable.
void CudaEngine::throw_refusal() {
  auto& status = *reinterpret_cast<Status*>(status_.host());
  if (__atomic_load_n(&status.bad_ids, __ATOMIC_ACQUIRE) != 0) {
    const IdReport report = status.ids;
    __atomic_store_n(&status.bad_ids, 0, __ATOMIC_RELEASE);
    throw InvalidArgument(describe(report, options_.placement.experts(), options_.capacity.top_k, rank_));
  }
  if (__atomic_load_n(&status.refused, __ATOMIC_ACQUIRE) != 0) {
    std::string reason(status.refusal, static_cast<size_t>(std::max(0, status.refusal_size)));
    if (status.refusal_size < 0) {
      IdReport report;
      std::memcpy(&report, status.refusal, sizeof(report));
      reason = describe(report, options_.placement.experts(), options_.capacity.top_k, status.refused_by);
    }
    const int32_t by = status.refused_by;
    __atomic_store_n(&status.refused, 0, __ATOMIC_RELEASE);
    throw CallRefused(text("rank ", by, " refused the call: ", reason));
  }
}

Timeline CudaEngine::timeline() const {
  if (!options_.record_timeline) return {};
  const DeviceGuard guard(device_.device_id);
  const auto read = [&]<class T>(const std::byte* from, int64_t count, T) {
    std::vector<T> values(static_cast<size_t>(count));
    cuda_check(cudaMemcpyAsync(values.data(), from, values.size() * sizeof(T), cudaMemcpyDeviceToHost, host_.get()),
               "reading the timeline");
    host_.synchronize();
    return values;
  };
  const DevicePlan plan = device_plan();
  const PlanHead head = read(reinterpret_cast<std::byte*>(plan.head), 1, PlanHead{})[0];
  const auto order = read(reinterpret_cast<std::byte*>(plan.order), head.bands, ScheduledBand{});
  const auto pieces = read(reinterpret_cast<std::byte*>(plan.pieces), head.pieces, Piece{});
  const auto tiles = read(tile_stamps_.data(), plan_layout_.max_bands * tiles_n_, TileStamp{});
  const auto shipped = read(piece_stamps_.data(), head.pieces, PieceStamp{});
  const auto call = read(call_stamps_.data(), 1, CallStamps{})[0];
  return device_timeline(rank_, tiles_n_, last_ctas_, last_lanes_, order, pieces, tiles, shipped, call);
}

SizeReport CudaEngine::sizes() const {
  SizeReport report = sizes_;
  report.input_bytes = largest_of_ranks(options_, &SizeReport::input_bytes);
  report.counter_bytes = layout_.staging;
  return report;
}

std::string CudaEngine::device_text() const {
  return text("device=cuda:", device_.device_id, ", sms=", share_.sms, " of ", share_.device_sms,
              ", comm_sms=", comm_sms_.of_largest(), stores() ? ", transfer='store'" : "",
              ", kernel=", producer_->name());
}

}  // namespace tileoverlap
