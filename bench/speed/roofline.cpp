// The machine's limits as a small shared library, compiled on demand by roofline.py with -O3 -march=native.
// Vectors are GCC vector types of kWidth floats: 64 bytes with AVX-512, 32 with AVX2, 16 otherwise.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <random>
#include <thread>
#include <vector>

namespace {

#if defined(__AVX512F__)
constexpr int kWidth = 16;
#elif defined(__AVX2__)
constexpr int kWidth = 8;
#else
constexpr int kWidth = 4;
#endif
typedef float vf __attribute__((vector_size(4 * kWidth)));
typedef vf unaligned __attribute__((aligned(4), may_alias));

vf splat(float x) { return x - vf{}; }
float sum(vf v) {
  float total = 0;
  for (int i = 0; i < kWidth; ++i) total += v[i];
  return total;
}
vf load(const float* x) { return *reinterpret_cast<const unaligned*>(x); }

// `rounds` times 12 independent multiply-adds; returns the floating-point operations done.
double fma(int64_t rounds, float* sink) {
  constexpr int kChains = 12;
  vf a[kChains];
  for (int j = 0; j < kChains; ++j) a[j] = splat(*sink + static_cast<float>(j));  // different, or they merge
  const vf m = splat(0.999f), c = splat(1e-3f);
  for (int64_t r = 0; r < rounds; ++r)
#pragma GCC unroll 12
    for (int j = 0; j < kChains; ++j) a[j] = a[j] * m + c;
  for (int j = 1; j < kChains; ++j) a[0] += a[j];
  *sink = sum(a[0]);
  return static_cast<double>(rounds) * kChains * 2 * kWidth;
}

float read(const float* x, int64_t n) {
  vf a = {}, b = {}, c = {}, d = {};
  for (int64_t i = 0; i + 4 * kWidth <= n; i += 4 * kWidth) {
    a += load(x + i);
    b += load(x + i + kWidth);
    c += load(x + i + 2 * kWidth);
    d += load(x + i + 3 * kWidth);
  }
  return sum((a + b) + (c + d));
}

// The n lines of 64 bytes at x[16 line[i]], in that order; a sum per vector of two lines hides the latency of addition.
float lines(const float* x, const uint32_t* line, int64_t n) {
  constexpr int kVectors = 16 / kWidth;
  vf a[kVectors] = {}, b[kVectors] = {};
  for (int64_t i = 0; i + 2 <= n; i += 2) {
    const float *p = x + int64_t{line[i]} * 16, *q = x + int64_t{line[i + 1]} * 16;
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) {
      a[j] += load(p + j * kWidth);
      b[j] += load(q + j * kWidth);
    }
  }
  for (int j = 1; j < kVectors; ++j) a[0] += a[j], b[0] += b[j];
  return sum(a[0] + b[0]);
}

// Best rate (work per second) of repeated calls within the time; the first call warms up.
double best_rate(double seconds, const std::function<double()>& work) {
  work();
  double best = 0, spent = 0;
  while (spent < seconds) {
    const auto start = std::chrono::steady_clock::now();
    const double done = work();
    const double t = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    best = std::max(best, done / t);
    spent += t;
  }
  return best;
}

// The work of `one(t)` over all threads t.
double all(int threads, const std::function<double(int)>& one) {
  if (threads == 1) return one(0);
  std::vector<double> done(static_cast<size_t>(threads));
  std::vector<std::thread> team;
  for (int t = 0; t < threads; ++t) team.emplace_back([&, t] { done[static_cast<size_t>(t)] = one(t); });
  for (auto& thread : team) thread.join();
  double total = 0;
  for (const double d : done) total += d;
  return total;
}

}  // namespace

extern "C" {

int simd_floats() { return kWidth; }

// out[3]: GFLOP/s of multiply-adds, GB/s of reading, GB/s of the triad a = b + s c; `threads` threads together.
void measure_roofline(int threads, double seconds, double* out) {
  const int64_t n = int64_t{1} << 24;  // 64 MiB per thread and array: far beyond the caches
  const auto size = static_cast<size_t>(threads);
  std::vector<std::vector<float>> a(size, std::vector<float>(n)), b = a, c = a;
  std::vector<float> sink(16 * size, 1.f);
  const auto measure = [&](const std::function<double(size_t)>& one) {
    return 1e-9 * best_rate(seconds, [&] { return all(threads, [&](int t) { return one(static_cast<size_t>(t)); }); });
  };
  // half a millisecond: the best of many is undisturbed even on a busy machine
  out[0] = measure([&](size_t t) { return fma(250'000, &sink[16 * t]); });
  out[1] = measure([&](size_t t) {
    sink[16 * t] = read(a[t].data(), n);
    return 4.0 * static_cast<double>(n);
  });
  out[2] = measure([&](size_t t) {
    float* x = a[t].data();
    const float *y = b[t].data(), *z = c[t].data();
    for (int64_t i = 0; i < n; ++i) x[i] = y[i] + 0.5f * z[i];
    return 12.0 * static_cast<double>(n);
  });
}

// Lines of 64 bytes that one thread reads per second in random, independent order from a table of so many.
double measure_random_lines(int64_t table_lines, double seconds) {
  const int64_t n = int64_t{1} << 18;
  std::vector<float> table(static_cast<size_t>(table_lines) * 16 + 16);
  float* first = table.data();  // on a line of its own
  while (reinterpret_cast<uintptr_t>(first) % 64) ++first;
  std::vector<uint32_t> line(static_cast<size_t>(n));
  std::mt19937 rng(1);
  for (auto& i : line) i = static_cast<uint32_t>(rng() % static_cast<uint64_t>(table_lines));
  volatile float sink = 0;
  return best_rate(seconds, [&] {
    sink = lines(first, line.data(), n);
    return static_cast<double>(n);
  });
}

}  // extern "C"
