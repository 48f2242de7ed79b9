#pragma once
// The compiled kernels, each one object behind a function of its own: what find_producer chooses from. One function a
// file where a translation unit takes minutes (sm_90a), three where it does not.

#include "produce/gpu_producer.hpp"

namespace tileoverlap {

// Compute capability 8.0 and later.
const GpuProducer& sm80_bf16_128x128();
const GpuProducer& sm80_bf16_128x128_gelu();
const GpuProducer& sm80_bf16_128x128_silu_gate();
const GpuProducer& sm80_fp16_128x128();
const GpuProducer& sm80_fp16_128x128_gelu();
const GpuProducer& sm80_fp16_128x128_silu_gate();

// Compute capability 9.0 alone. Named by the tile of the output: a gated kernel's tile of weights is twice as wide.
const GpuProducer& sm90_bf16_128x256();
const GpuProducer& sm90_bf16_128x256_gelu();
const GpuProducer& sm90_bf16_128x128_silu_gate();
const GpuProducer& sm90_bf16_128x128();
const GpuProducer& sm90_bf16_64x128();
const GpuProducer& sm90_bf16_64x256();
const GpuProducer& sm90_bf16_64x256_gelu();
const GpuProducer& sm90_bf16_64x128_silu_gate();
const GpuProducer& sm90_fp16_128x256();
const GpuProducer& sm90_fp16_128x256_gelu();
const GpuProducer& sm90_fp16_128x128_silu_gate();
const GpuProducer& sm90_fp16_128x128();
const GpuProducer& sm90_fp16_64x128();
const GpuProducer& sm90_fp16_64x256();
const GpuProducer& sm90_fp16_64x256_gelu();
const GpuProducer& sm90_fp16_64x128_silu_gate();

}  // namespace tileoverlap
