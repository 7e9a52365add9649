#include "core/probe.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <mutex>
#include <vector>

#include "core/buffer.h"
#include "core/parallel.h"
#include "core/rng.h"

namespace xmc {
namespace {

using Clock = std::chrono::steady_clock;

// Best rate (work per second) of repeated calls within the time; the first call warms up.
double best_rate(double seconds, const std::function<double()>& work) {
  work();
  double best = 0, spent = 0;
  while (spent < seconds) {
    const auto start = Clock::now();
    const double done = work();
    const double t = std::chrono::duration<double>(Clock::now() - start).count();
    best = std::max(best, done / t);
    spent += t;
  }
  return best;
}

}  // namespace

Roofline measure_roofline(int threads, double seconds) {
  const ProbeKernels& kernels = probe_kernels();
  const int64_t n = int64_t{1} << 24;  // 64 MiB per thread and array: far beyond the caches
  std::vector<Buffer<float>> a, b, c;
  std::vector<float> sink(static_cast<size_t>(threads) * 16, 1.f);
  for (int t = 0; t < threads; ++t) {
    a.emplace_back(n);
    b.emplace_back(n);
    c.emplace_back(n);
  }
  const auto all = [&](const std::function<double(int64_t)>& one) {
    double total = 0;
    std::mutex mutex;
    parallel_for(threads, threads, [&](int64_t block, int) {
      const double done = one(block);
      const std::lock_guard<std::mutex> lock(mutex);
      total += done;
    });
    return total;
  };
  const auto at = [](int64_t i) { return static_cast<size_t>(i); };
  Roofline r;
  r.fma_gflops = 1e-9 * best_rate(seconds, [&] {
                   // half a millisecond: the best of many is undisturbed even on a busy machine
                   return all([&](int64_t t) { return kernels.fma(250'000, &sink[at(t) * 16]); });
                 });
  r.read_gbs = 1e-9 * best_rate(seconds, [&] {
                 return all([&](int64_t t) {
                   sink[at(t) * 16] = kernels.read(a[at(t)].data(), n);
                   return 4.0 * static_cast<double>(n);
                 });
               });
  r.triad_gbs = 1e-9 * best_rate(seconds, [&] {
                  return all([&](int64_t t) {
                    kernels.triad(a[at(t)].data(), b[at(t)].data(), c[at(t)].data(), 0.5f, n);
                    return 12.0 * static_cast<double>(n);
                  });
                });
  return r;
}

double measure_random_lines(int64_t table_lines, double seconds) {
  const int64_t n = int64_t{1} << 18;
  Buffer<float> table(table_lines * 16);
  Buffer<uint32_t> line(n);
  Rng rng(1);
  for (int64_t i = 0; i < n; ++i) line[i] = rng.below(static_cast<uint32_t>(table_lines));
  volatile float sink = 0;
  return best_rate(seconds, [&] {
    sink = probe_kernels().lines(table.data(), line.data(), n);
    return static_cast<double>(n);
  });
}

}  // namespace xmc
