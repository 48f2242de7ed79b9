#pragma once
// Macros that mark what is public and what runs on host and device alike.

#if defined(TILEOVERLAP_STATIC)
#define TILEOVERLAP_API
#else
#define TILEOVERLAP_API __attribute__((visibility("default")))
#endif

// Inline functions under this mark are compiled for the host and, by nvcc, for the device: the host planner and
// the device planner call the same ones and so produce the same bits.
#if defined(__CUDACC__)
#define TILEOVERLAP_HD __host__ __device__
#else
#define TILEOVERLAP_HD
#endif
