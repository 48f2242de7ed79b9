// One expert layer over four ranks of this process: 16 experts, top-2, float32.
#include <cstdio>
#include <tileoverlap/tileoverlap.hpp>
#include <vector>

namespace to = tileoverlap;

int main() {
  constexpr int32_t kRanks = 4, kExperts = 16, kTopK = 2;
  constexpr int64_t kTokens = 32, kHidden = 64, kInner = 32;
  const auto placement = to::Placement::even(kRanks, kExperts);

  struct Rank {
    std::unique_ptr<to::MoeLayer> layer;
    std::vector<float> x, gates, up, down, out;
    std::vector<int32_t> ids;
  };
  std::vector<Rank> ranks(kRanks);
  const auto transports = to::make_in_process_world(kRanks);
  for (int32_t r = 0; r < kRanks; ++r) {
    to::LayerOptions options{.placement = placement, .dtype = to::DType::kFloat32, .expert = to::ExpertKind::kGelu};
    options.hidden = kHidden;
    options.inner = kInner;
    options.top_k = kTopK;
    options.max_tokens = kTokens;
    Rank& rank = ranks[r];
    rank.layer = to::make_cpu_executor(transports[r])->prepare_layer(options);
    const int64_t experts = placement.experts_on(r);
    rank.x.assign(kTokens * kHidden, 1.0f);
    rank.gates.assign(kTokens * kTopK, 0.5f);
    rank.up.assign(experts * kInner * kHidden, 1.0f / kHidden);
    rank.down.assign(experts * kHidden * kInner, 1.0f / kInner);
    rank.out.resize(kTokens * kHidden);
    for (int32_t copy = 0; copy < kTokens * kTopK; ++copy) rank.ids.push_back(copy % kExperts);
  }
  for (Rank& rank : ranks) {  // every rank starts its call; nobody waits yet
    const int64_t experts = placement.experts_on(rank.layer->rank());
    const auto f32 = to::DType::kFloat32;
    rank.layer->forward({.x = to::BorrowedTensor(rank.x.data(), f32, {kTokens, kHidden}),
                         .topk_ids = to::BorrowedTensor(rank.ids.data(), to::DType::kInt32, {kTokens, kTopK}),
                         .topk_weights = to::BorrowedTensor(rank.gates.data(), f32, {kTokens, kTopK}),
                         .up = to::BorrowedTensor(rank.up.data(), f32, {experts, kInner, kHidden}),
                         .down = to::BorrowedTensor(rank.down.data(), f32, {experts, kHidden, kInner}),
                         .out = to::BorrowedTensor(rank.out.data(), f32, {kTokens, kHidden})});
  }
  for (Rank& rank : ranks) rank.layer->synchronize();
  std::printf("out[0][0] = %.6f, gelu(1) = 0.841345\n", ranks[0].out[0]);
}
