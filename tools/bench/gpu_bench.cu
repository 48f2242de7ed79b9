// What the GPU kernels take by themselves, one line a shape: the signalling GEMM with and without flags, and the
// operator (GEMM and return) on a loop-back link: one rank has the whole GPU, its peers' memory lies on the same
// device.
//
//   gpu_bench [--json FILE] [--dtype bfloat16|float16] [--tile MxN] [--only producer|operator] [--repetitions N]
//             [--shape ROWS,EXPERTS,K,N] [--comm-sms N] [--group N] [--bands N] [--pause SECONDS]
//
// --shape and --comm-sms measure one shape or split in place of the list. Before each measurement the GPU rests for
// --pause seconds (default 1): under load it lowers its clock within a tenth of a second, which is what medians of long
// runs show. Times are medians over repetitions of events around each launch, variants in turn, inputs random, after
// warm-up. TFLOP/s count valid rows only. bound = (gemm + copy) / max(gemm, copy); reached = max(gemm, copy) /
// overlapped.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "core/cuda_objects.hpp"
#include "execute/link_kernels.hpp"
#include "execute/workspace_layout.hpp"
#include "plan/build_pieces.hpp"
#include "produce/gpu_producer.hpp"
#include "tileoverlap/plan/plan.hpp"

namespace tileoverlap {
namespace {

// Uniform in [-1, 1), another value for each element and seed.
__global__ void fill_randomly(uint16_t* values, int64_t count, uint32_t seed, bool bfloat16) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < count; i += int64_t{gridDim.x} * blockDim.x) {
    uint64_t draw = (static_cast<uint64_t>(i) + 1) * 0x9e3779b97f4a7c15u + seed;
    draw = (draw ^ (draw >> 30)) * 0xbf58476d1ce4e5b9u;
    draw = (draw ^ (draw >> 27)) * 0x94d049bb133111ebu;
    const float value = static_cast<float>(draw >> 40) / 8388608.0f - 1.0f;
    values[i] = bfloat16 ? __bfloat16_as_ushort(__float2bfloat16_rn(value)) : __half_as_ushort(__float2half_rn(value));
  }
}

struct Options {
  std::string json, only;
  DType dtype = DType::kBFloat16;
  int32_t tile_m = 128, tile_n = 256;
  int repetitions = 50;
  int32_t comm_sms = 0, group = 8, bands_per_segment = 1;
  double pause = 1;
};

struct Shape {
  int64_t rows, k, n;  // rows of all experts
  int32_t experts;
};

// Whose tokens the experts' rows are.
enum class Owners {
  kSelf,   // the rank's own: nothing is sent, so the order of tiles is the GEMM's own
  kEvenly  // a quarter each rank's: remote rows come first
};

// One rank with everything that its operator needs: rank 0 of four, which hosts all experts.
class LoopBack {
 public:
  static constexpr int32_t kWorld = 4;

  LoopBack(const Options& options, const Shape& shape, Owners owners)
      : options_(options), shape_(shape), stream_(0), comm_(0, -5), begun_(0), sent_(0) {
    const auto placement = Placement::from_begins({0, shape.experts, shape.experts, shape.experts, shape.experts});
    const auto copies = static_cast<int32_t>(shape.rows / shape.experts);
    const int32_t share = owners == Owners::kEvenly ? copies / kWorld : 0;
    std::vector<int32_t> matrix(static_cast<size_t>(kWorld * shape.experts), share);
    std::fill_n(matrix.begin(), shape.experts, copies - (kWorld - 1) * share);
    const RouteCounts counts(placement, std::move(matrix));
    const PlanOptions plan_options{.tile_m = options.tile_m,
                                   .tile_n = options.tile_n,
                                   .layout = Layout::kCompact,
                                   .bands_per_segment = options.bands_per_segment,
                                   .group = options.group};
    const Plan plan = make_plan(placement, 0, counts, shape.n, plan_options);
    const int64_t row_bytes = shape.n * size_of(options.dtype);
    const int64_t rows_a_piece = piece_rows(row_bytes, options.tile_m);
    const int64_t pieces = static_cast<int64_t>(plan->segments.size()) + plan->valid_rows / rows_a_piece + 1;
    plan_layout_ = DevicePlanLayout::make(kWorld, shape.experts, plan.bands(), pieces);
    std::vector<std::byte> image(static_cast<size_t>(plan_layout_.total));
    write_plan(*plan, rows_a_piece, plan_layout_, image.data());
    plan_ = upload(image.data(), image.size());
    tiles_n_ = plan->tiles_n;
    rows_ = plan->rows;
    flops_ = 2.0 * static_cast<double>(plan->valid_rows) * static_cast<double>(shape.n) * static_cast<double>(shape.k);
    shipped_bytes_ = 0;
    for (const Segment& segment : plan->segments) shipped_bytes_ += segment.row_count * row_bytes;

    input_ = random(rows_ * shape.k, 1);
    weights_ = random(shape.experts * shape.n * shape.k, 2);
    output_ = DeviceBytes(0, static_cast<size_t>(rows_ * row_bytes));
    flags_ = DeviceBytes(0, static_cast<size_t>(plan.tiles()) * sizeof(uint64_t));
    control_ = DeviceBytes(0, sizeof(Control));
    status_ = PinnedBytes(0, sizeof(Status));
    layout_ = WorkspaceLayout::make(kWorld, {.staging = share * shape.experts * row_bytes});
    std::vector<std::byte*> parts;
    for (int32_t rank = 0; rank < kWorld; ++rank) {
      parts_memory_.emplace_back(0, static_cast<size_t>(layout_.total));
      parts.push_back(parts_memory_.back().data());
    }
    parts_ = upload(parts.data(), parts.size() * sizeof(parts[0]));
    Control control{};
    control.connected = 1;
    cuda_check(cudaMemcpy(control_.data(), &control, sizeof(control), cudaMemcpyHostToDevice), "control");
    const uint64_t granted = ~uint64_t{0} >> 1;  // the peers' staging is always free
    for (int32_t peer = 1; peer < kWorld; ++peer) {
      cuda_check(cudaMemcpy(parts[0] + layout_.word_offset(Word::kCredit, peer), &granted, sizeof(granted),
                            cudaMemcpyHostToDevice),
                 "credits");
    }
    cuda_check(cudaDeviceGetAttribute(&sms_, cudaDevAttrMultiProcessorCount, 0), "SMs");
    int major = 0, minor = 0;
    cuda_check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0), "capability");
    cuda_check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0), "capability");
    producer_ = find_producer(10 * major + minor, options.dtype, options.tile_m, options.tile_n, ExpertKind::kSingle);
    if (producer_ == nullptr) throw InvalidArgument("no kernel for this tile");
    producer_->load();
    peer_kernels().load(false);
  }

  int32_t sms() const { return sms_; }
  double flops() const { return flops_; }
  int64_t shipped_bytes() const { return shipped_bytes_; }

  void begin() { peer_kernels().begin_call(world(), nullptr, stream_.get()); }
  void produce(int32_t ctas, bool flags) {
    const DevicePlan plan = device_plan();
    GemmTask task{.head = plan.head, .order = plan.order, .experts = shape_.experts, .rows = rows_};
    task.k = shape_.k;
    task.n = shape_.n;
    task.input = input_.data();
    task.input_stride = shape_.k;
    task.weights = {.tensor = weights_.data(), .expert_stride = shape_.n * shape_.k, .row_stride = shape_.k};
    task.output = output_.data();
    task.output_stride = shape_.n;
    if (flags) {
      task.publish.flags = reinterpret_cast<uint64_t*>(flags_.data());
      task.publish.epoch = &reinterpret_cast<Control*>(control_.data())->epoch;
    }
    task.ctas = ctas;
    producer_->launch(task, stream_.get());
  }
  void ship(int32_t ctas) { ship(ctas, stream_.get()); }
  void ship(int32_t ctas, cudaStream_t stream) {
    peer_kernels().ship_rows({.world = world(),
                              .plan = device_plan(),
                              .flags = reinterpret_cast<const uint64_t*>(flags_.data()),
                              .tiles_n = tiles_n_,
                              .output = output_.data(),
                              .row_bytes = shape_.n * size_of(options_.dtype),
                              .stamps = nullptr,
                              .disorder = {}},
                             ctas, stream);
  }
  void overlapped(int32_t comm_sms) {
    begun_.record(stream_.get());
    produce(sms_ - comm_sms, true);
    begun_.hold(comm_.get());
    ship(comm_sms, comm_.get());
    sent_.record(comm_.get());
    sent_.hold(stream_.get());
  }
  void serial(int32_t comm_sms) {
    produce(sms_, true);
    ship(comm_sms, stream_.get());
  }

  // In microseconds. The best is what the GPU does while it is cool; the median what it keeps up.
  struct Time {
    double median, p10, p90, best;
  };
  struct Variant {
    std::function<void()> before;  // not timed
    std::function<void()> body;
  };
  // Variants in turn within each repetition, so that all meet the GPU in the same state.
  std::vector<Time> time(const std::vector<Variant>& variants) {
    std::this_thread::sleep_for(std::chrono::duration<double>(options_.pause));
    cudaEvent_t begin = nullptr, end = nullptr;
    cuda_check(cudaEventCreate(&begin), "event");
    cuda_check(cudaEventCreate(&end), "event");
    std::vector<std::vector<double>> times(variants.size());
    constexpr int kWarmUp = 10;
    for (int i = 0; i < kWarmUp + options_.repetitions; ++i) {
      for (size_t v = 0; v < variants.size(); ++v) {
        variants[v].before();
        cuda_check(cudaEventRecord(begin, stream_.get()), "event");
        variants[v].body();
        cuda_check(cudaEventRecord(end, stream_.get()), "event");
        cuda_check(cudaEventSynchronize(end), "running");
        float milliseconds = 0;
        cuda_check(cudaEventElapsedTime(&milliseconds, begin, end), "time");
        if (i >= kWarmUp) times[v].push_back(1e3 * static_cast<double>(milliseconds));
      }
    }
    cuda_check(cudaEventDestroy(begin), "event");
    cuda_check(cudaEventDestroy(end), "event");
    if (reinterpret_cast<const Status*>(status_.host())->failed != 0) {
      throw WaitTimeout(reinterpret_cast<const Status*>(status_.host())->record, 0);
    }
    std::vector<Time> result;
    for (auto& values : times) {
      std::sort(values.begin(), values.end());
      result.push_back(
          {values[values.size() / 2], values[values.size() / 10], values[values.size() * 9 / 10], values.front()});
    }
    return result;
  }

  // Bytes that differ between the output rows and where they were shipped.
  int64_t wrong_bytes() {
    std::vector<std::byte> image(static_cast<size_t>(plan_layout_.total));
    cuda_check(cudaMemcpy(image.data(), plan_.data(), image.size(), cudaMemcpyDeviceToHost), "plan");
    const DevicePlan plan = plan_layout_.at(image.data());
    const int64_t row_bytes = shape_.n * size_of(options_.dtype);
    int64_t wrong = 0;
    for (int64_t i = 0; i < plan.head->pieces; i += std::max<int64_t>(1, plan.head->pieces / 64)) {
      const Piece& piece = plan.pieces[i];
      const auto bytes = static_cast<size_t>(piece.row_count * row_bytes);
      std::vector<char> here(bytes), there(bytes);
      cuda_check(cudaMemcpy(here.data(), output_.data() + piece.row_begin * row_bytes, bytes, cudaMemcpyDeviceToHost),
                 "rows");
      cuda_check(cudaMemcpy(there.data(),
                            parts_memory_[static_cast<size_t>(piece.peer)].data() + layout_.staging +
                                piece.remote_row * row_bytes,
                            bytes, cudaMemcpyDeviceToHost),
                 "staging");
      for (size_t b = 0; b < bytes; ++b) wrong += here[b] != there[b];
    }
    return wrong;
  }

 private:
  DeviceBytes upload(const void* from, size_t bytes) {
    DeviceBytes memory(0, bytes);
    cuda_check(cudaMemcpy(memory.data(), from, bytes, cudaMemcpyHostToDevice), "upload");
    return memory;
  }
  DeviceBytes random(int64_t elements, uint32_t seed) {
    DeviceBytes memory(0, static_cast<size_t>(elements) * sizeof(uint16_t));
    fill_randomly<<<1024, 256>>>(reinterpret_cast<uint16_t*>(memory.data()), elements, seed,
                                 options_.dtype == DType::kBFloat16);
    cuda_check(cudaDeviceSynchronize(), "random values");
    return memory;
  }
  DevicePlan device_plan() const { return plan_layout_.at(plan_.data()); }
  DeviceWorld world() const {
    return {.layout = layout_,
            .rank = 0,
            .parts = reinterpret_cast<std::byte* const*>(parts_.data()),
            .terms = 0,
            .control = reinterpret_cast<Control*>(control_.data()),
            .status = reinterpret_cast<Status*>(status_.device_pointer()),
            .limit_ns = 10'000'000'000};
  }

  const Options options_;
  const Shape shape_;
  Stream stream_, comm_;
  Event begun_, sent_;
  const GpuProducer* producer_ = nullptr;
  DevicePlanLayout plan_layout_;
  WorkspaceLayout layout_;
  DeviceBytes plan_, input_, weights_, output_, flags_, control_, parts_;
  std::vector<DeviceBytes> parts_memory_;
  PinnedBytes status_;
  int32_t tiles_n_ = 0;
  int sms_ = 0;
  int64_t rows_ = 0, shipped_bytes_ = 0;
  double flops_ = 0;
};

class Report {
 public:
  void row(const char* kind, const std::vector<std::pair<std::string, double>>& values) {
    std::printf("%s", kind);
    json_ << (json_.tellp() > 0 ? ",\n" : "") << "  {\"row\": \"" << kind << '"';
    for (const auto& [name, value] : values) {
      std::printf("  %s %.4g", name.c_str(), value);
      json_ << ", \"" << name << "\": " << value;
    }
    std::printf("\n");
    std::fflush(stdout);
    json_ << '}';
  }
  void save(const Options& options, const std::string& kernel) const {
    if (options.json.empty()) return;
    cudaDeviceProp device;
    int driver = 0;
    cuda_check(cudaGetDeviceProperties(&device, 0), "device");
    cuda_check(cudaDriverGetVersion(&driver), "driver");
    std::ofstream(options.json) << "{\"device\": \"" << device.name << "\", \"driver\": " << driver
                                << ", \"kernel\": \"" << kernel << "\", \"rows\": [\n"
                                << json_.str() << "\n]}\n";
  }

 private:
  std::ostringstream json_;
};

void bench_producer(const Options& options, const Shape& shape, Report& report) {
  LoopBack rank(options, shape, Owners::kSelf);
  constexpr int32_t kSpared = 12;
  const auto begin = [&] { rank.begin(); };
  const auto times = rank.time({{begin, [&] { rank.produce(rank.sms(), true); }},
                                {begin, [&] { rank.produce(rank.sms(), false); }},
                                {begin, [&] { rank.produce(rank.sms() - kSpared, true); }}});
  const auto rate = [&](double us) { return rank.flops() / us * 1e-6; };
  report.row("producer", {{"rows", static_cast<double>(shape.rows)},
                          {"experts", shape.experts},
                          {"k", static_cast<double>(shape.k)},
                          {"n", static_cast<double>(shape.n)},
                          {"flags_us", times[0].median},
                          {"flags_p10_us", times[0].p10},
                          {"flags_p90_us", times[0].p90},
                          {"flags_tflops", rate(times[0].median)},
                          {"flags_best_tflops", rate(times[0].best)},
                          {"plain_tflops", rate(times[1].median)},
                          {"minus12_tflops", rate(times[2].median)}});
}

void bench_operator(const Options& options, const Shape& shape, Report& report) {
  LoopBack rank(options, shape, Owners::kEvenly);
  const auto begin = [&] { rank.begin(); };
  std::vector<int32_t> splits = {6, 7, 8, 10, 12, 14};
  if (options.comm_sms > 0) splits = {options.comm_sms};
  for (const int32_t comm_sms : splits) {
    const auto times = rank.time({{begin, [&] { rank.produce(rank.sms(), true); }},
                                  {begin, [&] { rank.produce(rank.sms() - comm_sms, true); }},
                                  {[&] {
                                     rank.begin();
                                     rank.produce(rank.sms(), true);
                                   },
                                   [&] { rank.ship(comm_sms); }},
                                  {begin, [&] { rank.serial(comm_sms); }},
                                  {begin, [&] { rank.overlapped(comm_sms); }}});
    const double gemm = times[0].median, copy = times[2].median, overlapped = times[4].median;
    report.row("operator", {{"rows", static_cast<double>(shape.rows)},
                            {"experts", shape.experts},
                            {"k", static_cast<double>(shape.k)},
                            {"n", static_cast<double>(shape.n)},
                            {"comm_sms", comm_sms},
                            {"gemm_us", gemm},
                            {"part_us", times[1].median},
                            {"copy_us", copy},
                            {"copy_gbs", static_cast<double>(rank.shipped_bytes()) / copy * 1e-3},
                            {"serial_us", times[3].median},
                            {"overlapped_us", overlapped},
                            {"p10_us", times[4].p10},
                            {"p90_us", times[4].p90},
                            {"over_serial", times[3].median / overlapped},
                            {"bound", (gemm + copy) / std::max(gemm, copy)},
                            {"reached", std::max(gemm, copy) / overlapped},
                            {"wrong_bytes", static_cast<double>(rank.wrong_bytes())}});
  }
}

int run(int argc, char** argv) {
  Options options;
  std::vector<Shape> shapes;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i], value = argv[i + 1];
    if (name == "--json") options.json = value;
    if (name == "--only") options.only = value;
    if (name == "--dtype") options.dtype = parse_dtype(value);
    if (name == "--pause") options.pause = std::atof(value.c_str());
    if (name == "--comm-sms") options.comm_sms = std::atoi(value.c_str());
    if (name == "--group") options.group = std::atoi(value.c_str());
    if (name == "--bands") options.bands_per_segment = std::atoi(value.c_str());
    if (name == "--shape") {
      long rows = 0, experts = 0, k = 0, n = 0;
      if (std::sscanf(value.c_str(), "%ld,%ld,%ld,%ld", &rows, &experts, &k, &n) != 4) {
        throw InvalidArgument("--shape needs ROWS,EXPERTS,K,N, got " + value);
      }
      shapes.push_back({rows, k, n, static_cast<int32_t>(experts)});
    }
    if (name == "--repetitions") options.repetitions = std::atoi(value.c_str());
    if (name == "--tile" && std::sscanf(value.c_str(), "%dx%d", &options.tile_m, &options.tile_n) != 2) {
      throw InvalidArgument("--tile needs MxN, got " + value);
    }
  }
  Report report;
  constexpr int64_t kDepth = 2048, kWidth = 8192;
  std::vector<Shape> of_producer = shapes, of_operator = shapes;
  if (shapes.empty()) {
    for (const int64_t rows : {16384, 32768}) {
      for (const int32_t experts : {4, 16, 64}) of_producer.push_back({rows, kDepth, kWidth, experts});
    }
    of_operator = {{16384, kDepth, kWidth, 16},
                   {16384, kDepth, kWidth, 64},
                   {32768, kDepth, kWidth, 16},
                   {16384, kDepth, kWidth / 2, 16}};
  }
  if (options.only != "operator") {
    for (const Shape& shape : of_producer) bench_producer(options, shape, report);
  }
  if (options.only != "producer") {
    for (const Shape& shape : of_operator) bench_operator(options, shape, report);
  }
  report.save(options, text(options.tile_m, "x", options.tile_n));
  return 0;
}

}  // namespace
}  // namespace tileoverlap

int main(int argc, char** argv) {
  try {
    return tileoverlap::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gpu_bench: %s\n", error.what());
    return 1;
  }
}
