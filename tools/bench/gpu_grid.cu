// The correctness grid: W = 4 virtual ranks on one GPU run the return path for the sweep of the paper's Table 2 (20
// shapes, 3 router modes, 12 numbers of comm SMs, 1 and 2 bands a segment: 1440 checks a type), and a trace of real
// choices.
//
//   gpu_grid [--json FILE] [--dtype bfloat16|float16|both] [--trace FILE] [--every N] [--transfer ship|store]
//
// Each check draws new ids, gates and rows, poisons outputs and every buffer that nobody may read, and wants:
// overlapped equal to serial bit for bit, no NaN in any output, and a sample of tokens within the tolerances of a
// float64 sum.
// With --transfer store the GEMM of the overlapped calls stores rows at their owners itself.
// --every N runs each N-th check only. A trace is raw int32: world, tokens, top_k, experts, then
// ids[world][tokens][top_k].

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "core/cuda_objects.hpp"
#include "tileoverlap/tileoverlap.hpp"

namespace tileoverlap {
namespace {

constexpr int32_t kWorld = 4;
constexpr int64_t kDepth = 2048;
constexpr int kThreads = 256;

__device__ uint64_t mixed(uint64_t draw) {
  draw = (draw ^ (draw >> 30)) * 0xbf58476d1ce4e5b9u;
  draw = (draw ^ (draw >> 27)) * 0x94d049bb133111ebu;
  return draw ^ (draw >> 31);
}

__device__ float unit(uint64_t i, uint64_t seed) {
  return static_cast<float>(mixed((i + 1) * 0x9e3779b97f4a7c15u + seed) >> 40) / 8388608.0f - 1.0f;
}

__device__ double value_of(uint16_t bits, bool bfloat16) {
  return bfloat16 ? __bfloat162float(__ushort_as_bfloat16(bits)) : __half2float(__ushort_as_half(bits));
}

__global__ void fill_rows(uint16_t* values, int64_t count, uint64_t seed, float scale, bool bfloat16) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < count; i += int64_t{gridDim.x} * blockDim.x) {
    const float value = scale * unit(static_cast<uint64_t>(i), seed);
    values[i] = bfloat16 ? __bfloat16_as_ushort(__float2bfloat16_rn(value)) : __half_as_ushort(__float2half_rn(value));
  }
}

__global__ void fill_gates(float* values, int64_t count, uint64_t seed) {
  const int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (i < count) values[i] = 0.5f + 0.5f * unit(static_cast<uint64_t>(i), seed);
}

struct Differences {
  unsigned long long bits, nans;
};

__global__ void compare(const uint16_t* a, const uint16_t* b, int64_t count, bool bfloat16, Differences* found) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < count; i += int64_t{gridDim.x} * blockDim.x) {
    if (a[i] != b[i]) atomicAdd(&found->bits, 1ull);
    if (isnan(value_of(a[i], bfloat16))) atomicAdd(&found->nans, 1ull);
  }
}

constexpr int32_t kSlots = 8;
struct Sample {
  const uint16_t* out;  // [n]
  int32_t copies;
  const uint16_t* rows[kSlots];     // [k]
  const uint16_t* weights[kSlots];  // [n, k]
  float gates[kSlots];
};
struct SampleError {
  double worst, largest, squared_error, squared;
};

// One CTA a sample and a range of columns, one warp a column at a time.
__global__ void check_samples(const Sample* samples, int64_t k, int64_t n, bool bfloat16, SampleError* errors) {
  const Sample sample = samples[blockIdx.x];
  const int64_t lane = threadIdx.x % 32, warps = int64_t{gridDim.y} * (blockDim.x / 32);
  for (int64_t column = blockIdx.y * int64_t{blockDim.x / 32} + threadIdx.x / 32; column < n; column += warps) {
    double expected = 0;
    for (int32_t copy = 0; copy < sample.copies; ++copy) {
      double sum = 0;
      for (int64_t i = lane; i < k; i += 32) {
        sum += value_of(sample.rows[copy][i], bfloat16) * value_of(sample.weights[copy][column * k + i], bfloat16);
      }
      for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(~0u, sum, offset);
      expected += static_cast<double>(sample.gates[copy]) * sum;
    }
    if (lane != 0) continue;
    const double error = fabs(value_of(sample.out[column], bfloat16) - expected);
    SampleError& mine = errors[blockIdx.x];
    // Not negative: such doubles compare as their bits do.
    atomicMax(reinterpret_cast<unsigned long long*>(&mine.worst), __double_as_longlong(error));
    atomicMax(reinterpret_cast<unsigned long long*>(&mine.largest), __double_as_longlong(fabs(expected)));
    atomicAdd(&mine.squared_error, error * error);
    atomicAdd(&mine.squared, expected * expected);
  }
}

uint32_t blocks(int64_t count) {
  return static_cast<uint32_t>(std::min<int64_t>(4096, (count + kThreads - 1) / kThreads));
}

// The router modes of docs/evaluation.md: weights p over experts, top-k without replacement.
class Router {
 public:
  Router(const std::string& mode, int32_t experts, uint64_t seed) : mode_(mode), experts_(experts), random_(seed) {
    const double a = mode == "stress_skew" ? 0.5 : 0.2, sigma = mode == "stress_skew" ? 1.0 : 0.4;
    const int32_t local = experts / kWorld;
    std::mt19937_64 shuffle(1);
    for (int32_t rank = 0; rank < kWorld; ++rank) {
      std::vector<double> weights;
      double total = 0;
      for (int32_t j = 0; j < local; ++j) {
        weights.push_back(std::exp(sigma * normal_quantile((j + 0.5) / local)));
        total += weights.back();
      }
      std::shuffle(weights.begin(), weights.end(), shuffle);
      for (const double weight : weights) {
        const double share = (1.0 + a * (1.0 - 2.0 * rank / (kWorld - 1))) / kWorld * weight / total;
        cumulative_.push_back((cumulative_.empty() ? 0.0 : cumulative_.back()) + share);
      }
    }
  }

  void draw(int64_t tokens, int32_t top_k, std::vector<int32_t>& ids) {
    ids.clear();
    for (int64_t token = 0; token < tokens; ++token) {
      for (int32_t slot = 0; slot < top_k; ++slot) {
        if (mode_ == "balanced") {
          ids.push_back(static_cast<int32_t>((token + slot * ((experts_ + top_k - 1) / top_k)) % experts_));
          continue;
        }
        int32_t id = 0;
        const auto begin = ids.end() - slot;
        do {  // without replacement: the same distribution as Gumbel top-k
          const double u = uniform_(random_) * cumulative_.back();
          id = static_cast<int32_t>(std::upper_bound(cumulative_.begin(), cumulative_.end(), u) - cumulative_.begin());
          id = std::min(id, experts_ - 1);
        } while (std::find(begin, ids.end(), id) != ids.end());
        ids.push_back(id);
      }
    }
  }

 private:
  // By bisection of the error function: a few calls, so speed does not matter.
  static double normal_quantile(double p) {
    double low = -10, high = 10;
    for (int i = 0; i < 80; ++i) {
      const double middle = (low + high) / 2;
      (0.5 * std::erfc(-middle / std::sqrt(2.0)) < p ? low : high) = middle;
    }
    return low;
  }

  std::string mode_;
  int32_t experts_;
  std::mt19937_64 random_;
  std::uniform_real_distribution<double> uniform_{0.0, 1.0};
  std::vector<double> cumulative_;
};

struct Case {
  DType dtype;
  int64_t tokens, n;
  int32_t experts, top_k;  // experts of all ranks
};

struct Tally {
  int64_t checks = 0, failures = 0;
  double worst_token = 0, worst_l2 = 0;  // of samples, relative
  double seconds = 0;
};

// Memory and inputs of one shape on all ranks.
class Bed {
 public:
  explicit Bed(const Case& shape, uint64_t seed) : shape_(shape), placement_(Placement::even(kWorld, shape.experts)) {
    const Capacity capacity{.max_tokens = shape.tokens, .top_k = shape.top_k};
    const PlanOptions widest{.tile_m = 128};
    for (int32_t rank = 0; rank < kWorld; ++rank) {
      streams_.emplace_back(0);
      rows_held_ = std::max(rows_held_, max_rows(placement_, rank, capacity, widest));
      const int64_t experts = placement_.experts_on(rank);
      weights_.emplace_back(0, bytes(experts * shape.n * kDepth));
      fill(weights_.back(), experts * shape.n * kDepth, seed + static_cast<uint64_t>(rank), 1.0f);
      rows_.emplace_back(0, bytes(rows_held_ * kDepth));
      ids_.emplace_back(0, static_cast<size_t>(copies()) * sizeof(int32_t));
      gates_.emplace_back(0, static_cast<size_t>(copies()) * sizeof(float));
      outs_.emplace_back(0, bytes(shape.tokens * shape.n));
      serial_outs_.emplace_back(0, bytes(shape.tokens * shape.n));
    }
    differences_ = DeviceBytes(0, sizeof(Differences));
    samples_ = DeviceBytes(0, kSamples * sizeof(Sample));
    errors_ = DeviceBytes(0, kSamples * sizeof(SampleError));
  }

  int64_t copies() const { return shape_.tokens * shape_.top_k; }

  std::vector<std::unique_ptr<Session>> prepare(int32_t comm_sms, Transfer transfer, const PlanOptions& plan) {
    std::vector<std::unique_ptr<Session>> sessions;
    CudaOptions options{.comm_sms = comm_sms, .transfer = transfer};
    options.faults.poison = true;
    for (const auto& transport : make_device_world(std::vector<int32_t>(kWorld, 0))) {
      sessions.push_back(make_cuda_executor(transport, options)
                             ->prepare({.placement = placement_,
                                        .dtype = shape_.dtype,
                                        .k = kDepth,
                                        .n = shape_.n,
                                        .top_k = shape_.top_k,
                                        .max_tokens = shape_.tokens,
                                        .plan = plan,
                                        .timeout_ns = 20'000'000'000}));
    }
    return sessions;
  }

  void set_ids(const std::vector<std::vector<int32_t>>& ids) {
    host_ids_ = ids;
    for (size_t rank = 0; rank < kWorld; ++rank) {
      cuda_check(cudaMemcpy(ids_[rank].data(), ids[rank].data(), ids_[rank].bytes(), cudaMemcpyHostToDevice), "ids");
    }
  }

  // What is wrong with one check; empty if nothing.
  std::string check(std::vector<std::unique_ptr<Session>>& sessions, const PlanOptions& options, uint64_t seed,
                    Tally& tally) {
    std::vector<TensorArg> id_args;
    std::vector<std::unique_ptr<BorrowedTensor>> id_tensors;
    for (const auto& ids : host_ids_) {
      id_tensors.push_back(std::make_unique<BorrowedTensor>(
          ids.data(), DType::kInt32, std::initializer_list<int64_t>{shape_.tokens, shape_.top_k}));
      id_args.push_back(*id_tensors.back());
    }
    const RouteCounts counts = count_routes(placement_, id_args);
    std::vector<Plan> plans;
    for (int32_t rank = 0; rank < kWorld; ++rank) {
      const auto r = static_cast<size_t>(rank);
      plans.push_back(make_plan(placement_, rank, counts, shape_.n, options));
      cuda_check(cudaMemset(rows_[r].data(), 0xff, rows_[r].bytes()), "poison");
      fill(rows_[r], plans[r]->rows * kDepth, seed * 31 + static_cast<uint64_t>(rank), 1.0f);
      fill_gates<<<blocks(copies()), kThreads>>>(reinterpret_cast<float*>(gates_[r].data()), copies(),
                                                 seed * 37 + static_cast<uint64_t>(rank));
      cuda_check(cudaMemset(outs_[r].data(), 0xff, outs_[r].bytes()), "poison");
      cuda_check(cudaMemset(serial_outs_[r].data(), 0xff, serial_outs_[r].bytes()), "poison");
    }
    cuda_check(cudaDeviceSynchronize(), "inputs");
    run(sessions, plans, outs_, RunMode::kOverlapped);
    run(sessions, plans, serial_outs_, RunMode::kSerial);
    for (const auto& session : sessions) session->synchronize();

    cuda_check(cudaMemset(differences_.data(), 0, differences_.bytes()), "differences");
    for (size_t rank = 0; rank < kWorld; ++rank) {
      compare<<<1024, kThreads>>>(elements(outs_[rank]), elements(serial_outs_[rank]), shape_.tokens * shape_.n,
                                  bfloat16(), reinterpret_cast<Differences*>(differences_.data()));
    }
    Differences found{};
    cuda_check(cudaMemcpy(&found, differences_.data(), sizeof(found), cudaMemcpyDeviceToHost), "differences");
    if (found.bits != 0) return text(found.bits, " elements differ between overlapped and serial");
    if (found.nans != 0) return text(found.nans, " elements are NaN");
    return check_samples_of(plans, id_args, seed, tally);
  }

 private:
  static constexpr size_t kSamples = 128;

  bool bfloat16() const { return shape_.dtype == DType::kBFloat16; }
  static size_t bytes(int64_t elements) { return static_cast<size_t>(elements) * sizeof(uint16_t); }
  static uint16_t* elements(const DeviceBytes& memory) { return reinterpret_cast<uint16_t*>(memory.data()); }
  void fill(const DeviceBytes& memory, int64_t count, uint64_t seed, float scale) const {
    fill_rows<<<blocks(count), kThreads>>>(elements(memory), count, seed, scale, bfloat16());
    cuda_check(cudaGetLastError(), "filling");
  }

  void run(std::vector<std::unique_ptr<Session>>& sessions, const std::vector<Plan>& plans,
           const std::vector<DeviceBytes>& outs, RunMode mode) {
    const DLDevice device{kDLCUDA, 0};
    for (size_t r = 0; r < kWorld; ++r) {
      const int64_t experts = placement_.experts_on(static_cast<int32_t>(r));
      sessions[r]->run(
          plans[r],
          {.rows = BorrowedTensor(rows_[r].data(), shape_.dtype, {plans[r]->rows, kDepth}, device),
           .weights = BorrowedTensor(weights_[r].data(), shape_.dtype, {experts, shape_.n, kDepth}, device),
           .topk_ids = BorrowedTensor(ids_[r].data(), DType::kInt32, {shape_.tokens, shape_.top_k}, device),
           .topk_weights = BorrowedTensor(gates_[r].data(), DType::kFloat32, {shape_.tokens, shape_.top_k}, device),
           .out = BorrowedTensor(outs[r].data(), shape_.dtype, {shape_.tokens, shape_.n}, device),
           .mode = mode,
           .stream = streams_[r].get()});
    }
  }

  std::string check_samples_of(const std::vector<Plan>& plans, const std::vector<TensorArg>& id_args, uint64_t seed,
                               Tally& tally) {
    std::mt19937_64 random(seed);
    std::vector<Sample> samples;
    for (size_t r = 0; r < kWorld; ++r) {
      const CopyIndex index = make_copy_index(plans[r], id_args[r]);
      std::vector<float> gates(static_cast<size_t>(copies()));
      cuda_check(cudaMemcpy(gates.data(), gates_[r].data(), gates_[r].bytes(), cudaMemcpyDeviceToHost), "gates");
      for (size_t i = 0; i < kSamples / kWorld; ++i) {
        const auto token = static_cast<int64_t>(random() % static_cast<uint64_t>(shape_.tokens));
        Sample sample{};
        sample.out = elements(outs_[r]) + token * shape_.n;
        for (int32_t slot = 0; slot < shape_.top_k; ++slot) {
          const auto copy = static_cast<size_t>(token * shape_.top_k + slot);
          if (index.peer[copy] < 0) continue;
          const auto peer = static_cast<size_t>(index.peer[copy]);
          const int32_t expert = host_ids_[r][copy] - placement_.begin(index.peer[copy]);
          sample.rows[sample.copies] = elements(rows_[peer]) + index.dispatch_row[copy] * kDepth;
          sample.weights[sample.copies] = elements(weights_[peer]) + expert * shape_.n * kDepth;
          sample.gates[sample.copies++] = gates[copy];
        }
        samples.push_back(sample);
      }
    }
    cuda_check(cudaMemcpy(samples_.data(), samples.data(), samples_.bytes(), cudaMemcpyHostToDevice), "samples");
    cuda_check(cudaMemset(errors_.data(), 0, errors_.bytes()), "errors");
    check_samples<<<dim3(kSamples, 32), kThreads>>>(reinterpret_cast<const Sample*>(samples_.data()), kDepth, shape_.n,
                                                    bfloat16(), reinterpret_cast<SampleError*>(errors_.data()));
    std::vector<SampleError> errors(kSamples);
    cuda_check(cudaMemcpy(errors.data(), errors_.data(), errors_.bytes(), cudaMemcpyDeviceToHost), "errors");
    double squared_error = 0, squared = 0, worst = 0;
    for (const SampleError& error : errors) {
      worst = std::max(worst, error.largest > 0 ? error.worst / error.largest : error.worst);
      squared_error += error.squared_error;
      squared += error.squared;
    }
    const double l2 = squared > 0 ? std::sqrt(squared_error / squared) : 0.0;
    tally.worst_token = std::max(tally.worst_token, worst);
    tally.worst_l2 = std::max(tally.worst_l2, l2);
    const double most_token = bfloat16() ? 6.4e-2 : 8e-3, most_l2 = bfloat16() ? 8e-3 : 1e-3;
    if (!(worst <= most_token)) return text("a token is off by ", worst, " of its largest value");
    if (!(l2 <= most_l2)) return text("the relative L2 error is ", l2);
    return "";
  }

  const Case shape_;
  const Placement placement_;
  int64_t rows_held_ = 0;
  std::vector<Stream> streams_;
  std::vector<DeviceBytes> weights_, rows_, ids_, gates_, outs_, serial_outs_;
  DeviceBytes differences_, samples_, errors_;
  std::vector<std::vector<int32_t>> host_ids_;
};

struct Settings {
  std::string json, dtype = "both", trace;
  int64_t every = 1;
  Transfer transfer = Transfer::kShip;
};

class Grid {
 public:
  explicit Grid(const Settings& settings) : settings_(settings) {}

  // All comm_sms and bands_per_segment of one shape and routing.
  template <class Draw>
  void run(const Case& shape, const std::string& mode, Bed& bed, Draw draw) {
    const auto begin = std::chrono::steady_clock::now();
    Tally tally;
    constexpr int32_t kMostCommSms = 24;
    for (int32_t comm_sms = 2; comm_sms <= kMostCommSms; comm_sms += 2) {
      std::vector<std::unique_ptr<Session>> sessions;
      for (const int32_t bands : {1, 2}) {
        if (number_++ % settings_.every != 0) continue;
        const PlanOptions options{.tile_m = 128, .tile_n = tile_n(), .bands_per_segment = bands};
        if (sessions.empty()) sessions = bed.prepare(comm_sms, settings_.transfer, options);
        draw(bed);
        const auto seed = static_cast<uint64_t>(number_) * 1'000'003u;
        const std::string wrong = bed.check(sessions, options, seed, tally);
        ++tally.checks;
        if (wrong.empty()) continue;
        ++tally.failures;
        std::printf("WRONG: %s, %s, tokens %ld, N %ld, experts %d, comm_sms %d, bands %d: %s\n", name(shape.dtype),
                    mode.c_str(), static_cast<long>(shape.tokens), static_cast<long>(shape.n), shape.experts, comm_sms,
                    bands, wrong.c_str());
      }
    }
    tally.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    add(shape, mode, tally);
  }

  int finish() const {
    std::printf("%ld checks, %ld failures\n", static_cast<long>(checks_), static_cast<long>(failures_));
    if (!settings_.json.empty()) {
      cudaDeviceProp device;
      int driver = 0;
      cuda_check(cudaGetDeviceProperties(&device, 0), "device");
      cuda_check(cudaDriverGetVersion(&driver), "driver");
      std::ofstream(settings_.json) << "{\"device\": \"" << device.name << "\", \"driver\": " << driver
                                    << ", \"checks\": " << checks_ << ", \"failures\": " << failures_
                                    << ", \"rows\": [\n"
                                    << json_.str() << "\n]}\n";
    }
    return failures_ == 0 && checks_ > 0 ? 0 : 1;
  }

 private:
  static int32_t tile_n() {
    for (const auto& [m, n] : cuda_devices().at(0).bfloat16_tiles) {
      if (m == 128 && n == 256) return n;
    }
    return 128;
  }

  void add(const Case& shape, const std::string& mode, const Tally& tally) {
    if (tally.checks == 0) return;
    checks_ += tally.checks;
    failures_ += tally.failures;
    std::printf("%s %-13s tokens %5ld N %4ld experts %3d: %ld checks, %ld wrong, worst token %.2e, L2 %.2e, %.1f s\n",
                name(shape.dtype), mode.c_str(), static_cast<long>(shape.tokens), static_cast<long>(shape.n),
                shape.experts, static_cast<long>(tally.checks), static_cast<long>(tally.failures), tally.worst_token,
                tally.worst_l2, tally.seconds);
    std::fflush(stdout);
    json_ << (json_.tellp() > 0 ? ",\n" : "") << "  {\"dtype\": \"" << name(shape.dtype) << "\", \"mode\": \"" << mode
          << "\", \"tokens\": " << shape.tokens << ", \"n\": " << shape.n << ", \"experts\": " << shape.experts
          << ", \"checks\": " << tally.checks << ", \"failures\": " << tally.failures
          << ", \"worst_token\": " << tally.worst_token << ", \"worst_l2\": " << tally.worst_l2
          << ", \"seconds\": " << tally.seconds << '}';
  }

  const Settings settings_;
  int64_t number_ = 0, checks_ = 0, failures_ = 0;
  std::ostringstream json_;
};

void run_sweep(Grid& grid, DType dtype) {
  for (const int64_t tokens : {8192, 16384}) {
    for (const int64_t n : {4096, 8192}) {
      for (const int32_t experts : {4, 8, 16, 32, 64}) {
        const Case shape{.dtype = dtype, .tokens = tokens, .n = n, .experts = kWorld * experts, .top_k = 2};
        Bed bed(shape, static_cast<uint64_t>(tokens + n + experts));
        for (const char* mode : {"balanced", "moderate_skew", "stress_skew"}) {
          Router router(mode, shape.experts, 7);
          std::vector<std::vector<int32_t>> ids(kWorld);
          grid.run(shape, mode, bed, [&](Bed& at) {
            for (auto& rank_ids : ids) router.draw(shape.tokens, shape.top_k, rank_ids);
            at.set_ids(ids);
          });
        }
      }
    }
  }
}

void run_trace(Grid& grid, DType dtype, const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  int32_t head[4] = {};
  file.read(reinterpret_cast<char*>(head), sizeof(head));
  const auto [world, tokens, top_k, experts] = head;
  if (!file || world != kWorld || top_k > kSlots) throw InvalidArgument("not a trace for four ranks: " + path);
  std::vector<std::vector<int32_t>> ids(kWorld,
                                        std::vector<int32_t>(static_cast<size_t>(tokens) * static_cast<size_t>(top_k)));
  for (auto& rank_ids : ids) {
    file.read(reinterpret_cast<char*>(rank_ids.data()),
              static_cast<std::streamsize>(rank_ids.size() * sizeof(int32_t)));
  }
  if (!file) throw InvalidArgument("the trace ends early: " + path);
  const Case shape{.dtype = dtype, .tokens = tokens, .n = 4096, .experts = experts, .top_k = top_k};
  Bed bed(shape, 11);
  bed.set_ids(ids);
  grid.run(shape, "trace", bed, [](Bed&) {});
}

int run(int argc, char** argv) {
  Settings settings;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i], value = argv[i + 1];
    if (name == "--json") settings.json = value;
    if (name == "--transfer" && value == "store") settings.transfer = Transfer::kStore;
    if (name == "--dtype") settings.dtype = value;
    if (name == "--trace") settings.trace = value;
    if (name == "--every") settings.every = std::max(1, std::atoi(value.c_str()));
  }
  Grid grid(settings);
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    if (settings.dtype != "both" && parse_dtype(settings.dtype) != dtype) continue;
    if (!settings.trace.empty()) run_trace(grid, dtype, settings.trace);
    run_sweep(grid, dtype);
  }
  return grid.finish();
}

}  // namespace
}  // namespace tileoverlap

int main(int argc, char** argv) {
  try {
    return tileoverlap::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gpu_grid: %s\n", error.what());
    return 1;
  }
}
