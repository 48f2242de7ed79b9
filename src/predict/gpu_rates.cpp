#include "tileoverlap/predict/gpu_rates.hpp"

#include <algorithm>
#include <cmath>

#include "core/text.hpp"
#include "tileoverlap/core/error.hpp"
#include "tileoverlap/core/math.hpp"

namespace tileoverlap {
namespace {

const std::vector<GpuRates>& measured_gpus() {
  static const std::vector<GpuRates> gpus = {
#include "predict/gpu_rates.inc"
  };
  return gpus;
}

// The same chip with more or fewer SMs.
GpuRates scaled(GpuRates rates, int32_t sms) {
  const double by = static_cast<double>(sms) / rates.sms;
  rates.sms = sms;
  rates.matmul_tflops *= by;
  rates.memory_gbs *= by;
  rates.gemm_scale /= by;  // of the times in `gemms`, which were measured on another number of SMs
  return rates;
}

struct GemmWork {
  int64_t tiles;
  double tile_flop;
  double bytes;
};

// Of bands of rows and of a 16-bit type: each weight and row is read once, each output row written once.
GemmWork work_of(const GemmShape& shape) {
  const auto rows = static_cast<double>(shape.bands) * shape.tile_m;
  const auto k = static_cast<double>(shape.k), n = static_cast<double>(shape.n);
  return {.tiles = shape.bands * ceil_div(shape.n, shape.tile_n),
          .tile_flop = 2.0 * shape.tile_m * shape.tile_n * k,
          .bytes = 2.0 * (shape.experts * k * n + rows * (k + n))};
}

// Nothing is lost: waves of tiles, or bytes in memory.
double least_us(const GpuRates& rates, const GemmShape& shape, int32_t sms) {
  const GemmWork work = work_of(shape);
  const double share = static_cast<double>(sms) / rates.sms;
  const double tile_us = work.tile_flop * rates.sms / (rates.matmul_tflops * 1e6) * std::pow(share, rates.clock_relief);
  return std::max(static_cast<double>(ceil_div(work.tiles, sms)) * tile_us, work.bytes / (rates.memory_gbs * 1e3));
}

GemmShape shape_of(const MeasuredGemm& gemm) {
  const int64_t rows_an_expert = ceil_div(gemm.rows, gemm.experts);
  return {.bands = gemm.experts * ceil_div(rows_an_expert, gemm.tile_m),
          .experts = gemm.experts,
          .k = gemm.k,
          .n = gemm.n,
          .tile_m = gemm.tile_m,
          .tile_n = gemm.tile_n};
}

// Squared, in the logarithms of sizes; what a tile is counts as much as half the rows.
double distance(const GemmShape& a, const GemmShape& b) {
  const auto apart = [](int64_t x, int64_t y) {
    return std::log2(static_cast<double>(max64(x, 1))) - std::log2(static_cast<double>(max64(y, 1)));
  };
  const double rows = apart(a.bands * a.tile_m, b.bands * b.tile_m), experts = apart(a.experts, b.experts);
  const double k = apart(a.k, b.k), n = apart(a.n, b.n);
  const double tile_m = apart(a.tile_m, b.tile_m), tile_n = apart(a.tile_n, b.tile_n);
  return rows * rows + experts * experts + k * k + n * n + tile_m * tile_m + tile_n * tile_n;
}

// How much longer than the least a GEMM of this shape takes: the geometric mean over what was measured, weighted by
// one over the squared distance twice over, so that near shapes decide.
double shortfall(const GpuRates& rates, const GemmShape& shape) {
  constexpr double kSame = 1e-6;
  double weights = 0, logarithms = 0;
  for (const MeasuredGemm& gemm : rates.gemms) {
    const GemmShape there = shape_of(gemm);
    const double squared = std::max(distance(shape, there), kSame);
    const double weight = 1 / (squared * squared);
    weights += weight;
    logarithms += weight * std::log(gemm.us / least_us(rates, there, rates.sms));
  }
  return rates.gemm_scale * (weights > 0 ? std::exp(logarithms / weights) : 1);
}

}  // namespace

GpuRates gpu_rates(const std::string& device, int32_t capability, int32_t sms) {
  if (sms < 1) throw InvalidArgument(text("a GPU has a positive number of SMs, got ", sms));
  const std::vector<GpuRates>& gpus = measured_gpus();
  auto found = std::find_if(gpus.begin(), gpus.end(), [&](const GpuRates& gpu) { return gpu.device == device; });
  const bool same = found != gpus.end();
  if (!same) {
    found = std::find_if(gpus.begin(), gpus.end(), [&](const GpuRates& gpu) { return gpu.capability == capability; });
  }
  if (found == gpus.end()) found = gpus.begin();
  GpuRates rates = scaled(*found, sms);
  rates.source = same ? text("measured on ", found->device) : text("as on ", found->device, ", by SMs");
  rates.device = device;
  rates.capability = capability;
  return rates;
}

double gemm_us(const GpuRates& rates, const GemmShape& shape, int32_t sms) {
  if (sms < 1 || sms > rates.sms) {
    throw InvalidArgument(text("a GEMM runs on 1..", rates.sms, " SMs of ", rates.device, ", got ", sms));
  }
  return shape.bands == 0 ? 0 : shortfall(rates, shape) * least_us(rates, shape, sms);
}

}  // namespace tileoverlap
