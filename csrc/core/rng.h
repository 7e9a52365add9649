// Small seeded generators with the same stream on every platform (std distributions differ between
// libraries).
#pragma once

#include <cstdint>

namespace xmc {

// A full-period mix of 64 bits (splitmix64 finaliser): hashing, seeding, counter-based randomness.
inline uint64_t mix64(uint64_t x) {
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

// splitmix64: one add and one mix per number.
class Rng {
 public:
  explicit Rng(uint64_t seed) : state_(mix64(seed)) {}

  uint64_t next() {
    const uint64_t x = state_;
    state_ += 0x9E3779B97F4A7C15ull;
    return mix64(x);
  }
  // Uniform in [0, n), n < 2^32 (multiply-shift; bias below 2^-32).
  uint32_t below(uint32_t n) { return static_cast<uint32_t>(((next() >> 32) * n) >> 32); }
  // Uniform in [0, 1).
  double uniform() { return static_cast<double>(next() >> 11) * 0x1.0p-53; }

 private:
  uint64_t state_;
};

// Fisher-Yates, in place.
template <class T>
void shuffle(T* items, int64_t n, Rng& rng) {
  for (int64_t i = n - 1; i > 0; --i) {
    const auto j = static_cast<int64_t>(rng.below(static_cast<uint32_t>(i + 1)));
    const T t = items[i];
    items[i] = items[j];
    items[j] = t;
  }
}

}  // namespace xmc
