#include "core/simd.h"

#include <atomic>
#include <cstdlib>
#include <stdexcept>
#include <string>

#if defined(XMC_X86) && defined(_MSC_VER)
#include <intrin.h>
#endif

namespace xmc {
namespace {

SimdLevel detect() {
#if defined(XMC_X86) && defined(_MSC_VER)
  int r[4];
  __cpuidex(r, 1, 0);
  const bool fma = (r[2] >> 12) & 1, osxsave = (r[2] >> 27) & 1, f16c = (r[2] >> 29) & 1;
  if (!osxsave || !fma || !f16c) return SimdLevel::baseline;
  const unsigned long long state = _xgetbv(0);
  __cpuidex(r, 7, 0);
  const bool avx2 = (r[1] >> 5) & 1, bmi2 = (r[1] >> 8) & 1;
  if (!avx2 || !bmi2 || (state & 6) != 6) return SimdLevel::baseline;
  const int f = r[1];
  const bool avx512 = (f >> 16 & 1) && (f >> 17 & 1) && (f >> 28 & 1) && (f >> 30 & 1) && (f >> 31 & 1);
  return avx512 && (state & 0xe6) == 0xe6 ? SimdLevel::avx512 : SimdLevel::avx2;
#elif defined(XMC_X86)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
  if (!avx2) return SimdLevel::baseline;
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl");
  return avx512 ? SimdLevel::avx512 : SimdLevel::avx2;
#elif defined(XMC_ARM64)
  return SimdLevel::neon;  // part of every arm64 CPU
#else
  return SimdLevel::baseline;
#endif
}

// Levels of x86 go up to the best one; NEON stands beside them.
bool has(SimdLevel level) {
  if (level == SimdLevel::neon || simd_supported() == SimdLevel::neon) {
    return level == simd_supported() || level == SimdLevel::baseline;
  }
  return level <= simd_supported();
}

constexpr int kUnset = -1;
std::atomic<int> active{kUnset};

SimdLevel checked(SimdLevel level) {
  if (!has(level)) {
    throw std::invalid_argument(std::string("XMC_SIMD: this CPU has no ") + simd_name(level) +
                                " (best: " + simd_name(simd_supported()) + ")");
  }
  return level;
}

}  // namespace

SimdLevel simd_supported() {
  static const SimdLevel level = detect();
  return level;
}

SimdLevel simd_level() {
  const int level = active.load(std::memory_order_relaxed);
  if (level != kUnset) return static_cast<SimdLevel>(level);
  const char* wanted = std::getenv("XMC_SIMD");
  const SimdLevel first = checked(wanted && *wanted ? simd_from_name(wanted) : simd_supported());
  int unset = kUnset;  // a thread that has forced a level meanwhile wins
  active.compare_exchange_strong(unset, static_cast<int>(first));
  return static_cast<SimdLevel>(active.load(std::memory_order_relaxed));
}

void force_simd_level(SimdLevel level) {
  active.store(static_cast<int>(checked(level)));
}

const char* simd_name(SimdLevel level) {
  switch (level) {
    case SimdLevel::avx512:
      return "avx512";
    case SimdLevel::avx2:
      return "avx2";
    case SimdLevel::neon:
      return "neon";
    default:
      return "baseline";
  }
}

SimdLevel simd_from_name(const char* name) {
  for (const auto level : {SimdLevel::baseline, SimdLevel::avx2, SimdLevel::avx512, SimdLevel::neon}) {
    if (std::string(name) == simd_name(level)) return level;
  }
  throw std::invalid_argument(std::string("XMC_SIMD: expected baseline, avx2, avx512 or neon, got \"") +
                              name + "\"");
}

}  // namespace xmc
