#include "tileoverlap/bench/loop_back.hpp"

#include <algorithm>
#include <new>
#include <vector>

#include "consume/ship_lanes.hpp"
#include "core/cuda_objects.hpp"
#include "core/device_query.hpp"
#include "core/text.hpp"
#include "execute/choose_producer.hpp"
#include "execute/device_timeline.hpp"
#include "execute/link_kernels.hpp"
#include "execute/workspace_layout.hpp"
#include "plan/build_pieces.hpp"
#include "produce/gpu_producer.hpp"
#include "produce/owner_entries.hpp"

namespace tileoverlap {
namespace {

constexpr int64_t kLimitNs = 10'000'000'000;

cudaStream_t stream_of(void* address) { return static_cast<cudaStream_t>(address); }

// A rank's part of the memory, zeroed; the GPU reaches it wherever it lies.
class Part {
 public:
  Part(int32_t device, int64_t bytes, Link link) {
    const auto size = static_cast<size_t>(bytes);
    if (link == Link::kPcie) {
      on_host_ = PinnedBytes(device, size);
    } else {
      on_gpu_ = DeviceBytes(device, size);
    }
  }
  std::byte* data() const { return on_gpu_.data() != nullptr ? on_gpu_.data() : on_host_.device_pointer(); }

 private:
  DeviceBytes on_gpu_;
  PinnedBytes on_host_;
};

class OneGpuLoopBack final : public LoopBack {
 public:
  OneGpuLoopBack(const Plan& plan, DType dtype, int64_t k, int32_t device, Link link)
      : plan_(plan),
        dtype_(dtype),
        k_(k),
        device_(device),
        sms_(sms_of(device)),
        producer_(returned_producer(dtype, plan->options, device)),
        comm_(device, stream_priorities().greatest),
        begun_(device),
        sent_(device) {
    const DeviceGuard guard(device);
    if (k < 1 || k * size_of(dtype) % 16 != 0) {
      throw InvalidArgument(text("k must be positive and rows of k elements multiples of 16 bytes, got k = ", k));
    }
    if (plan->rows == 0) throw InvalidArgument("the plan has no rows to compute");
    producer_->load();
    peer_kernels().load(false);
    upload_plan();
    staging_rows_ = *std::max_element(plan->copies_of.begin(), plan->copies_of.end());
    layout_ = WorkspaceLayout::make(plan_.world(), {.staging = staging_rows_ * row_bytes()});
    std::vector<std::byte*> parts;
    for (int32_t rank = 0; rank < plan_.world(); ++rank) {
      // Its own part, which it polls, lies on its GPU, and needs words only: nothing is returned to it.
      const bool own = rank == plan->rank;
      parts_memory_.emplace_back(device, own ? layout_.staging : layout_.total, own ? Link::kHbm : link);
      parts.push_back(parts_memory_.back().data());
    }
    parts_ = upload(parts.data(), parts.size() * sizeof(parts[0]));
    Control control{};
    control.connected = 1;
    control_ = upload(&control, sizeof(control));
    const uint64_t granted = ~uint64_t{0} >> 1;  // the peers' staging is always free
    for (int32_t peer = 0; peer < plan_.world(); ++peer) {
      cuda_check(cudaMemcpy(parts[static_cast<size_t>(plan->rank)] + layout_.word_offset(Word::kCredit, peer), &granted,
                            sizeof(granted), cudaMemcpyHostToDevice),
                 "granting credits");
    }
    status_ = PinnedBytes(device, sizeof(Status));
    new (status_.host()) Status;
    const auto tiles = static_cast<size_t>(plan_.tiles());
    flags_ = DeviceBytes(device, tiles * sizeof(uint64_t));
    tile_stamps_ = DeviceBytes(device, tiles * sizeof(TileStamp));
    piece_stamps_ = DeviceBytes(device, static_cast<size_t>(plan_layout_.max_pieces) * sizeof(PieceStamp));
  }

  void begin(void* stream) override {
    const DeviceGuard guard(device_);
    peer_kernels().begin_call(world(), nullptr, stream_of(stream));
  }

  void produce(const LoopBackTensors& tensors, int32_t sms, bool publish, void* stream) override {
    check_sms("sms", sms, sms_);
    const DeviceGuard guard(device_);
    GemmTask task = gemm_task(tensors);
    if (publish) {
      task.publish.flags = flags();
      task.publish.epoch = &reinterpret_cast<const Control*>(control_.data())->epoch;
    }
    task.ctas = producer_ctas_ = sms;
    producer_->launch(task, stream_of(stream));
  }

  void stored(const LoopBackTensors& tensors, void* stream) override {
    const DeviceGuard guard(device_);
    GemmTask task = gemm_task(tensors);
    describe_owners(whole_rows(tensors.output).data);
    const DevicePlan plan = device_plan();
    peer_kernels().await_peers({.world = world(),
                                .what = WaitFor::kCredit,
                                .rows = plan.dispatched_rows,
                                .row_bytes = row_bytes(),
                                .totals = nullptr,
                                .plan = plan.head,
                                .stamps = nullptr},
                               stream_of(stream));
    task.store = {
        .runs = plan.runs, .run_count = task.experts * plan_.world(), .rank = plan_->rank, .maps = owners_.data()};
    task.ctas = producer_ctas_ = sms_;
    producer_->launch(task, stream_of(stream));
    peer_kernels().count_sent(world(), Word::kReturned, plan.dispatched_rows, row_bytes(), stream_of(stream));
  }

  void ship(const TensorArg& output, int32_t sms, bool wait, void* stream) override {
    check_sms("sms", sms, sms_);
    const DeviceGuard guard(device_);
    const TensorView rows = whole_rows(output);
    consumer_sms_ = sms;
    peer_kernels().ship_rows({.world = world(),
                              .plan = device_plan(),
                              .flags = wait ? flags() : nullptr,
                              .tiles_n = plan_->tiles_n,
                              .output = rows.data,
                              .row_bytes = row_bytes(),
                              .stamps = recording_ ? reinterpret_cast<PieceStamp*>(piece_stamps_.data()) : nullptr,
                              .disorder = {}},
                             sms, stream_of(stream));
  }

  void overlapped(const LoopBackTensors& tensors, int32_t comm_sms, void* stream) override {
    check_sms("comm_sms", comm_sms, sms_ - 1);
    const DeviceGuard guard(device_);
    begun_.record(stream_of(stream));
    produce(tensors, sms_ - comm_sms, true, stream);
    begun_.hold(comm_.get());
    ship(tensors.output, comm_sms, true, comm_.get());
    sent_.record(comm_.get());
    sent_.hold(stream_of(stream));
  }

  void record(bool on) override { recording_ = on; }

  Timeline timeline() override {
    settle();
    const auto tiles = download<TileStamp>(tile_stamps_, plan_.tiles());
    const auto shipped = download<PieceStamp>(piece_stamps_, static_cast<int64_t>(pieces_.size()));
    // Lanes of the consumer begin to wait before there is a tile.
    CallStamps call{};
    call.begin_ns = tiles.front().end_ns;
    for (const PieceStamp& piece : shipped) call.begin_ns = std::min(call.begin_ns, piece.wait_begin_ns);
    return device_timeline(plan_->rank, plan_->tiles_n, producer_ctas_, consumer_sms_ * ship_lanes(device_),
                           plan_->order, pieces_, tiles, shipped, call);
  }

  int64_t wrong_bytes(const TensorArg& output) override {
    const TensorView rows = whole_rows(output);
    settle();
    int64_t wrong = 0;
    std::vector<std::byte> here, there;
    for (const Segment& segment : plan_->segments) {
      const auto bytes = static_cast<size_t>(segment.row_count * row_bytes());
      here.resize(bytes);
      there.resize(bytes);
      cuda_check(cudaMemcpy(here.data(), rows.data + segment.row_begin * row_bytes(), bytes, cudaMemcpyDeviceToHost),
                 "reading output rows");
      cuda_check(cudaMemcpy(there.data(),
                            parts_memory_[static_cast<size_t>(segment.peer)].data() + layout_.staging +
                                segment.remote_row * row_bytes(),
                            bytes, cudaMemcpyDefault),  // from either link's memory
                 "reading staging rows");
      if (here == there) continue;
      for (size_t i = 0; i < bytes; ++i) wrong += here[i] != there[i] ? 1 : 0;
    }
    return wrong;
  }

  void check() override {
    const auto* status = reinterpret_cast<const Status*>(status_.host());
    if (status->failed != 0) throw WaitTimeout(status->record, plan_->rank);
  }

  int32_t sms() const override { return sms_; }
  int64_t shipped_bytes() const override {
    int64_t rows = 0;
    for (const Segment& segment : plan_->segments) rows += segment.row_count;
    return rows * row_bytes();
  }
  std::string kernel() const override { return producer_->name(); }
  bool can_store() const override { return producer_->owner_entry_bytes() > 0; }

 private:
  GemmTask gemm_task(const LoopBackTensors& tensors) const {
    const DevicePlan plan = device_plan();
    const Placement& placement = plan_->placement;
    const int32_t experts = placement.experts_on(plan_->rank);
    const TensorView rows = matrix(tensors.rows, "rows", k_, "[rows, K]", false);
    const TensorView output = matrix(tensors.output, "output", plan_->n, "[rows, N]", true);
    const TensorView weights = check_tensor(tensors.weights, {.argument = "weights",
                                                              .dtypes = {dtype_},
                                                              .shape = {experts, plan_->n, k_},
                                                              .shape_names = "[experts on this rank, N, K]",
                                                              .device = place(),
                                                              .row_bytes = 16});
    GemmTask task{.head = plan.head,
                  .order = plan.order,
                  .first_expert = placement.begin(plan_->rank),
                  .experts = experts,
                  .rows = plan_->rows};
    task.k = k_;
    task.n = plan_->n;
    task.input = rows.data;
    task.input_stride = rows.strides[0];
    task.weights = {.tensor = weights.data, .expert_stride = weights.strides[0], .row_stride = weights.strides[1]};
    task.output = output.data;
    task.output_stride = output.strides[0];
    if (recording_) task.publish.stamps = reinterpret_cast<TileStamp*>(tile_stamps_.data());
    return task;
  }
  // The rank's own rows go to `output`.
  void describe_owners(const std::byte* output) {
    if (output == described_) return;
    if (!can_store()) throw Error(text(producer_->name(), " cannot store rows to their owners"));
    std::vector<OwnerRows> owners;
    for (const Part& part : parts_memory_) owners.push_back({part.data() + layout_.staging, staging_rows_});
    owners[static_cast<size_t>(plan_->rank)] = {const_cast<std::byte*>(output), plan_->rows};
    const std::vector<std::byte> entries = owner_entries(*producer_, owners, plan_->n);
    owners_ = upload(entries.data(), entries.size());
    described_ = output;
  }
  void upload_plan() {
    const int64_t rows_a_piece = piece_rows(row_bytes(), plan_->options.tile_m);
    build_pieces(*plan_, rows_a_piece, pieces_);
    plan_layout_ =
        DevicePlanLayout::make(plan_.world(), plan_->placement.experts(), plan_->placement.experts_on(plan_->rank),
                               plan_.bands(), static_cast<int64_t>(pieces_.size()));
    std::vector<std::byte> image(static_cast<size_t>(plan_layout_.total));
    write_plan(*plan_, rows_a_piece, plan_layout_, image.data());
    plan_memory_ = upload(image.data(), image.size());
  }
  DeviceBytes upload(const void* from, size_t bytes) const {
    DeviceBytes memory(device_, bytes);
    cuda_check(cudaMemcpy(memory.data(), from, bytes, cudaMemcpyHostToDevice), "uploading");
    return memory;
  }
  template <class T>
  static std::vector<T> download(const DeviceBytes& from, int64_t count) {
    std::vector<T> values(static_cast<size_t>(count));
    cuda_check(cudaMemcpy(values.data(), from.data(), values.size() * sizeof(T), cudaMemcpyDeviceToHost),
               "reading time stamps");
    return values;
  }
  void settle() const {
    const DeviceGuard guard(device_);
    cuda_check(cudaDeviceSynchronize(), "waiting for the GPU");
  }
  DLDevice place() const { return {kDLCUDA, device_}; }
  int64_t row_bytes() const { return plan_->n * size_of(dtype_); }
  uint64_t* flags() const { return reinterpret_cast<uint64_t*>(flags_.data()); }
  DevicePlan device_plan() const { return plan_layout_.at(plan_memory_.data()); }

  TensorView matrix(const TensorArg& tensor, const char* argument, int64_t width, const char* names,
                    bool writable) const {
    const TensorView view = check_tensor(tensor, {.argument = argument,
                                                  .dtypes = {dtype_},
                                                  .shape = {-1, width},
                                                  .shape_names = names,
                                                  .writable = writable,
                                                  .device = place(),
                                                  .row_bytes = 16});
    if (view.shape[0] < plan_->rows) {
      throw InvalidArgument(text(argument, " must hold the plan's ", plan_->rows, " rows, got ", view.shape[0]));
    }
    return view;
  }
  TensorView whole_rows(const TensorArg& output) const {
    const TensorView view = matrix(output, "output", plan_->n, "[rows, N]", false);
    if (view.strides[0] != plan_->n) throw InvalidArgument("output must be contiguous to be shipped");
    return view;
  }
  static void check_sms(const char* argument, int32_t sms, int32_t most) {
    if (sms < 1 || sms > most) throw InvalidArgument(text(argument, " must lie in 1..", most, ", got ", sms));
  }
  DeviceWorld world() const {
    return {.layout = layout_,
            .rank = plan_->rank,
            .parts = reinterpret_cast<std::byte* const*>(parts_.data()),
            .terms = 0,
            .control = reinterpret_cast<Control*>(control_.data()),
            .status = reinterpret_cast<Status*>(status_.device_pointer()),
            .limit_ns = kLimitNs};
  }

  const Plan plan_;
  const DType dtype_;
  const int64_t k_;
  const int32_t device_;

  const int32_t sms_;
  const GpuProducer* producer_;
  Stream comm_;
  Event begun_, sent_;
  DevicePlanLayout plan_layout_;
  WorkspaceLayout layout_;
  int64_t staging_rows_ = 0;  // of each peer
  DeviceBytes owners_;
  const std::byte* described_ = nullptr;  // the output that owners_ knows
  DeviceBytes plan_memory_, flags_, control_, parts_, tile_stamps_, piece_stamps_;
  std::vector<Part> parts_memory_;
  PinnedBytes status_;
  std::vector<Piece> pieces_;
  int32_t producer_ctas_ = 0, consumer_sms_ = 0;  // of the last launches
  bool recording_ = false;
};

}  // namespace

std::unique_ptr<LoopBack> make_loop_back(const Plan& plan, DType dtype, int64_t k, int32_t device, Link link) {
  return std::make_unique<OneGpuLoopBack>(plan, dtype, k, device, link);
}

}  // namespace tileoverlap
