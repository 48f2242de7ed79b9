// A program with an NVSHMEM kernel of its own beside the library: one rank of a world, for test_gpu_nvshmem.py.
//
//     nvshmem_program program_first|library_first
//
// Each round a ring of puts by the program's kernel runs beside a layer on other inputs. What the ring brings, and the
// bits of the layer, must be those that ranks of one process give. Case D11.5.
#include <nvshmem.h>
#include <nvshmemx.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "support/gpu_world.hpp"
#include "tileoverlap/transport/nvshmem.hpp"
#include "tileoverlap/transport/tcp_gather.hpp"

namespace tileoverlap::testing {
namespace {

constexpr int kRounds = 20, kWords = 4096;

// Gives `sent` to the next rank and waits for what the rank before has sent in round `round`.
__global__ void ring(const int* sent, int* arrived, uint64_t* signal, uint64_t round) {
  const int next = (nvshmem_my_pe() + 1) % nvshmem_n_pes();
  nvshmemx_putmem_signal_block(arrived, sent, kWords * sizeof(int), signal, round, NVSHMEM_SIGNAL_SET, next);
  if (threadIdx.x == 0) nvshmem_signal_wait_until(signal, NVSHMEM_CMP_GE, round);
}

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? throw Error(std::string(name) + " is not set; start with `tileoverlap launch`") : value;
}

void require(bool right, const std::string& what) {
  if (!right) throw Error(what);
}

struct Ranks {
  int32_t rank = std::stoi(variable("RANK")), world = std::stoi(variable("WORLD_SIZE"));
  HostAllGather all_gather =
      make_tcp_all_gather({.rank = rank, .world = world, .address = variable("TILEOVERLAP_STORE")});
};

// The program's part: NVSHMEM with its kernel.
class Program {
 public:
  explicit Program(const Ranks& ranks) : ranks_(ranks) {
    nvshmemx_uniqueid_t id = NVSHMEMX_UNIQUEID_INITIALIZER;
    if (ranks.rank == 0) require(nvshmemx_get_uniqueid(&id) == 0, "no unique id");
    const auto ids = ranks.all_gather(std::as_bytes(std::span(&id, 1)));
    std::memcpy(&id, ids[0].data(), sizeof(id));
    nvshmemx_init_attr_t attributes = NVSHMEMX_INIT_ATTR_INITIALIZER;
    require(nvshmemx_set_attr_uniqueid_args(ranks.rank, ranks.world, &id, &attributes) == 0, "no arguments");
    require(nvshmemx_init_attr(NVSHMEMX_INIT_WITH_UNIQUEID, &attributes) == 0, "NVSHMEM does not start");
    sent_ = static_cast<int*>(nvshmem_malloc(kWords * sizeof(int)));
    arrived_ = static_cast<int*>(nvshmem_malloc(kWords * sizeof(int)));
    signal_ = static_cast<uint64_t*>(nvshmem_calloc(1, sizeof(uint64_t)));
  }

  void start_round(int round) {
    std::vector<int> words(kWords);
    std::iota(words.begin(), words.end(), 1000 * round + ranks_.rank);
    cuda_ok(cudaMemcpy(sent_, words.data(), kWords * sizeof(int), cudaMemcpyHostToDevice), "to the device");
    ring<<<1, 256, 0, stream_.stream>>>(sent_, arrived_, signal_, static_cast<uint64_t>(round));
    cuda_ok(cudaGetLastError(), "ring");
  }

  void check_round(int round) {
    cuda_ok(cudaStreamSynchronize(stream_.stream), "ring");
    std::vector<int> words(kWords);
    cuda_ok(cudaMemcpy(words.data(), arrived_, kWords * sizeof(int), cudaMemcpyDeviceToHost), "from the device");
    const int before = (ranks_.rank + ranks_.world - 1) % ranks_.world;
    for (int i = 0; i < kWords; ++i) {
      const int wanted = 1000 * round + before + i;
      require(words[i] == wanted, "round " + std::to_string(round) + ", word " + std::to_string(i) + ": " +
                                      std::to_string(words[i]) + ", not " + std::to_string(wanted));
    }
    (void)ranks_.all_gather({});  // nobody sends again before all have looked
  }

  void close() {
    for (void* memory : {static_cast<void*>(sent_), static_cast<void*>(arrived_), static_cast<void*>(signal_)})
      nvshmem_free(memory);
    nvshmem_finalize();
  }

 private:
  const Ranks& ranks_;
  CudaStream stream_;
  int* sent_ = nullptr;
  int* arrived_ = nullptr;
  uint64_t* signal_ = nullptr;
};

// The library's part: this rank's layer over NVSHMEM.
class Library {
 public:
  Library(const Ranks& ranks, const LayerInputs& inputs) : rank_(static_cast<size_t>(ranks.rank)) {
    NvshmemOptions options;
    options.rank = ranks.rank;
    options.world = ranks.world;
    options.all_gather = ranks.all_gather;
    world_ = start_nvshmem(options);
    layer_ = make_cuda_executor(world_->transport())->prepare_layer(layer_options(inputs, {.plan = GpuSetup().plan}));
  }

  void start(const GpuLayerCall& call) {
    layer_->forward({.x = call.x[rank_].arg(true),
                     .topk_ids = call.ids[rank_].arg(true),
                     .topk_weights = call.gates[rank_].arg(true),
                     .down = call.down[rank_].arg(true),
                     .out = call.outs[rank_].arg(),
                     .stream = stream_.stream});
  }
  void wait() { layer_->synchronize(); }
  void close() {
    layer_.reset();
    world_->close();
  }

 private:
  size_t rank_;
  CudaStream stream_;
  std::shared_ptr<NvshmemWorld> world_;
  std::unique_ptr<MoeLayer> layer_;
};

void run(const std::string& order) {
  require(order == "program_first" || order == "library_first", "program_first or library_first, not " + order);
  const Ranks ranks;
  const auto rank = static_cast<size_t>(ranks.rank);
  Random random(5);
  LayerShapes shapes{
      .placement = Placement::even(ranks.world, 3 * ranks.world), .hidden = 136, .inner = 72, .top_k = 2};
  shapes.tokens.assign(static_cast<size_t>(ranks.world), 48);
  LayerInputs inputs = make_layer_inputs(random, shapes);
  GpuLayerWorld in_process(inputs, {});
  GpuLayerCall call = GpuLayerWorld::make_call(inputs);

  std::unique_ptr<Program> program;
  if (order == "program_first") program = std::make_unique<Program>(ranks);
  auto library = std::make_unique<Library>(ranks, inputs);
  if (order == "library_first") program = std::make_unique<Program>(ranks);

  for (int round = 1; round <= kRounds; ++round) {
    draw_layer_tokens(random, inputs, shapes.tokens);
    GpuLayerWorld::refill(inputs, call);
    in_process.start_all(call);
    in_process.synchronize_all();
    const HostTensor wanted = call.outs[rank].download();
    GpuLayerWorld::refill(inputs, call);
    program->start_round(round);
    library->start(call);
    library->wait();
    program->check_round(round);
    const HostTensor out = call.outs[rank].download();
    require(std::memcmp(out.data(), wanted.data(), out.bytes()) == 0,
            "round " + std::to_string(round) + ": other bits than ranks of one process give");
  }
  // Who started it last ends first; the other goes on without.
  if (order == "program_first") library->close();
  program->start_round(kRounds + 1);
  program->check_round(kRounds + 1);
  program->close();
  if (order == "library_first") library->close();
  std::printf("%s: %d rounds right\n", order.c_str(), kRounds);
}

}  // namespace
}  // namespace tileoverlap::testing

int main(int count, char** arguments) {
  try {
    tileoverlap::testing::run(count > 1 ? arguments[1] : "");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "nvshmem_program: %s\n", error.what());
    return 1;
  }
  return 0;
}
