#include "dispatch/index_copies.hpp"

#include "plan/planner_sums.hpp"

namespace tileoverlap {
namespace {

constexpr uint32_t kWarp = 32;
constexpr uint32_t kAll = ~0u;
constexpr int32_t kNone = 0x7fffffff;  // no copy, no expert
constexpr uint32_t kScanThreads = 128;
constexpr int32_t kScanAhead = 8;  // loads in flight

__host__ __device__ int64_t copies_of(const CountTask& task) { return task.tokens * task.top_k; }
__host__ __device__ int64_t chunks_of(const CountTask& task) { return ceil_div(copies_of(task), kCopiesPerChunk); }

template <class Id>
__device__ int64_t id_of(const CountTask& task, int64_t copy) {
  const auto number = static_cast<uint32_t>(copy), slots = static_cast<uint32_t>(task.top_k);
  return static_cast<const Id*>(task.ids)[number / slots * task.id_stride + number % slots];
}

__device__ int32_t* chunk_at(const CountTask& task, int64_t chunk) {
  return task.chunks + chunk * (static_cast<int64_t>(task.experts) + 1);
}

// 32 consecutive copies, one a lane. The lanes whose copies go to the same expert form a set; its first lane speaks for
// it.
struct WarpCopies {
  int64_t copy;
  bool there;      // the copy exists: the last chunk may be short
  bool bad;        // neither -1 nor an expert
  int32_t expert;  // -1: no copy, or a bad id
  uint32_t same;   // lanes of the set

  template <class Id>
  __device__ static WarpCopies load(const CountTask& task, int64_t first) {
    WarpCopies copies;
    copies.copy = first + threadIdx.x;
    copies.there = copies.copy < copies_of(task);
    const int64_t id = copies.there ? id_of<Id>(task, copies.copy) : -1;
    const bool valid = id >= 0 && id < task.experts;
    copies.bad = id != -1 && !valid;
    copies.expert = valid ? static_cast<int32_t>(id) : -1;
    copies.same = __match_any_sync(kAll, copies.expert);
    return copies;
  }
  __device__ bool first_of_set() const { return expert >= 0 && threadIdx.x == __ffs(same) - 1u; }
  __device__ int32_t set_size() const { return __popc(same); }
  __device__ int32_t number_in_set() const { return __popc(same & ((1u << threadIdx.x) - 1)); }
};

template <class Id>
__global__ void __launch_bounds__(kWarp) count_copies_kernel(const CountTask task) {
  const int64_t chunk = blockIdx.x, begin = chunk * kCopiesPerChunk;
  if (begin >= copies_of(task)) return;
  int32_t* counts = chunk_at(task, chunk);
  for (auto expert = static_cast<int32_t>(threadIdx.x); expert < task.experts; expert += kWarp) counts[expert] = 0;
  __syncwarp();  // zeros before sums
  int32_t first_bad = kNone;
#pragma unroll 4
  for (int64_t first = begin; first < begin + kCopiesPerChunk; first += kWarp) {
    const auto copies = WarpCopies::load<Id>(task, first);
    if (copies.first_of_set()) atomicAdd(counts + copies.expert, copies.set_size());
    const uint32_t bad = __ballot_sync(kAll, copies.bad);
    if (bad != 0 && first_bad == kNone) first_bad = static_cast<int32_t>(first) + __ffs(static_cast<int32_t>(bad)) - 1;
  }
  if (threadIdx.x == 0) counts[task.experts] = first_bad;
}

// By one warp.
template <class Id>
__device__ void report_bad_id(const CountTask& task) {
  int32_t first = kNone;
  for (int64_t chunk = threadIdx.x; chunk < chunks_of(task); chunk += kWarp) {
    first = min(first, chunk_at(task, chunk)[task.experts]);
  }
  first = __reduce_min_sync(kAll, first);
  if (threadIdx.x != 0) return;
  *task.report = IdReport{};
  if (first == kNone) return;
  task.report->copy = first;
  task.report->value = id_of<Id>(task, first);
}

// One thread an expert.
template <class Id>
__global__ void __launch_bounds__(kScanThreads) scan_chunks_kernel(const CountTask task) {
  if (blockIdx.x == 0 && threadIdx.x < kWarp) report_bad_id<Id>(task);
  const int64_t expert = static_cast<int64_t>(blockIdx.x) * kScanThreads + threadIdx.x;
  if (expert >= task.experts) return;
  const int64_t chunks = chunks_of(task);
  int32_t before = 0;
  for (int64_t first = 0; first < chunks; first += kScanAhead) {
    int32_t counts[kScanAhead];
#pragma unroll
    for (int32_t i = 0; i < kScanAhead; ++i) counts[i] = first + i < chunks ? chunk_at(task, first + i)[expert] : 0;
#pragma unroll
    for (int32_t i = 0; i < kScanAhead; ++i) {
      if (first + i < chunks) chunk_at(task, first + i)[expert] = before;
      before += counts[i];
    }
  }
  task.totals[expert] = before;
}

__device__ int64_t planned_copies(const DevicePlan& plan, int32_t expert) {
  return plan.staging_row[expert + 1] - plan.staging_row[expert];
}

// By one warp. Too many copies of one expert and too few of another come together: either is found here.
__device__ void report_other_plan(const IndexTask& task) {
  const CountTask& counted = task.counted;
  int32_t first = kNone;
  for (auto expert = static_cast<int32_t>(threadIdx.x); expert < counted.experts; expert += kWarp) {
    if (counted.totals[expert] != planned_copies(task.plan, expert)) first = min(first, expert);
  }
  first = __reduce_min_sync(kAll, first);
  if (threadIdx.x != 0 || first == kNone) return;
  counted.report->expert = first;
  counted.report->copies = counted.totals[first];
  counted.report->planned = planned_copies(task.plan, first);
}

struct CopyPlace {
  int64_t gather_row = -1;
  int32_t peer = -1;
  int64_t dispatch_row = -1;
};

__device__ CopyPlace place_of(const IndexTask& task, int32_t expert, int64_t number) {
  const int64_t row = task.plan.dispatch_row[expert] + number;
  const int32_t host = planner::host_of(task.expert_begin, task.world, expert);
  const int64_t staged = task.plan.staging_row[expert] + number;
  return {host == task.rank ? task.plan.head->staging_rows + row : staged, host, row};
}

template <class Id>
__global__ void __launch_bounds__(kWarp) index_copies_kernel(const IndexTask task) {
  const CountTask& counted = task.counted;
  const bool refused = task.plan.head->refused_by >= 0;
  if (blockIdx.x == 0 && !refused) report_other_plan(task);
  const int64_t chunk = blockIdx.x, begin = chunk * kCopiesPerChunk;
  if (begin >= copies_of(counted)) return;
  int32_t* next = chunk_at(counted, chunk);  // number of the next copy of each expert
  for (int64_t first = begin; first < begin + kCopiesPerChunk; first += kWarp) {
    const auto copies = WarpCopies::load<Id>(counted, first);
    const int32_t before = copies.expert >= 0 ? next[copies.expert] : 0;
    __syncwarp();  // all have read
    if (copies.first_of_set()) next[copies.expert] = before + copies.set_size();
    __syncwarp();  // written, before the next 32 read
    if (!copies.there) continue;
    const int64_t number = before + copies.number_in_set();
    CopyPlace place;
    if (!refused && copies.expert >= 0 && number < planned_copies(task.plan, copies.expert)) {
      place = place_of(task, copies.expert, number);
    }
    if (task.gather_row != nullptr) task.gather_row[copies.copy] = place.gather_row;
    if (task.peer != nullptr) task.peer[copies.copy] = place.peer;
    if (task.dispatch_row != nullptr) task.dispatch_row[copies.copy] = place.dispatch_row;
  }
}

// Calls launch(Id{}) with the type of the ids.
template <class Launch>
cudaError_t with_id_type(DType dtype, Launch launch) {
  dtype == DType::kInt64 ? launch(int64_t{}) : launch(int32_t{});
  return cudaGetLastError();
}

uint32_t grid_of(int64_t ctas) { return static_cast<uint32_t>(max64(1, ctas)); }

}  // namespace

cudaError_t load_index_copies() {
  cudaFuncAttributes attributes;
  for (const void* kernel : {reinterpret_cast<const void*>(&count_copies_kernel<int32_t>),
                             reinterpret_cast<const void*>(&count_copies_kernel<int64_t>),
                             reinterpret_cast<const void*>(&scan_chunks_kernel<int32_t>),
                             reinterpret_cast<const void*>(&scan_chunks_kernel<int64_t>),
                             reinterpret_cast<const void*>(&index_copies_kernel<int32_t>),
                             reinterpret_cast<const void*>(&index_copies_kernel<int64_t>)}) {
    if (const cudaError_t status = cudaFuncGetAttributes(&attributes, kernel); status != cudaSuccess) return status;
  }
  return cudaSuccess;
}

cudaError_t count_copies(const CountTask& task, cudaStream_t stream) {
  return with_id_type(task.id_dtype, [&]<class Id>(Id) {
    count_copies_kernel<Id><<<grid_of(chunks_of(task)), kWarp, 0, stream>>>(task);
  });
}

cudaError_t scan_chunks(const CountTask& task, cudaStream_t stream) {
  return with_id_type(task.id_dtype, [&]<class Id>(Id) {
    scan_chunks_kernel<Id><<<grid_of(ceil_div(task.experts, kScanThreads)), kScanThreads, 0, stream>>>(task);
  });
}

cudaError_t index_copies(const IndexTask& task, cudaStream_t stream) {
  return with_id_type(task.counted.id_dtype, [&]<class Id>(Id) {
    index_copies_kernel<Id><<<grid_of(chunks_of(task.counted)), kWarp, 0, stream>>>(task);
  });
}

}  // namespace tileoverlap
