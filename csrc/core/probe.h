// The machine's limits, measured: what every bench reports its kernels against (bench/roofline.py).
#pragma once

#include <cstdint>

#include "core/simd.h"

namespace xmc {

struct ProbeKernels {
  // Runs `rounds` of 12 independent vector FMAs; returns the flops done. `sink` keeps the result alive.
  double (*fma)(int64_t rounds, float* sink);
  // Reads n floats, returns their sum.
  float (*read)(const float* x, int64_t n);
  // a[i] = b[i] + s * c[i]
  void (*triad)(float* a, const float* b, const float* c, float s, int64_t n);
  // Reads the n lines of 64 bytes at x[16 line[i]], in that order; returns a sum of what they hold.
  float (*lines)(const float* x, const uint32_t* line, int64_t n);
};
XMC_SIMD_TABLE(ProbeKernels, probe_kernels)

struct Roofline {
  double fma_gflops;
  double read_gbs;
  double triad_gbs;
};
// Peak of `threads` threads together; about `seconds` per figure.
Roofline measure_roofline(int threads, double seconds);
// Lines of 64 bytes that one thread reads per second in random, independent order from a table of so many.
double measure_random_lines(int64_t table_lines, double seconds);

}  // namespace xmc
