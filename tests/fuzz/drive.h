// The main of a fuzz target where there is no libFuzzer: TARGET SECONDS [SEED].
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "core/rng.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size);

// Inputs from make(rng) until the time is up, each of them run. Ends with what was done.
template <class Make>
int drive(int argc, char** argv, Make make) {
  const double seconds = argc > 1 ? std::atof(argv[1]) : 10;
  const uint64_t seed = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1;
  xmc::Rng rng(seed);
  const auto start = std::chrono::steady_clock::now();
  int64_t runs = 0;
  for (; std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() < seconds; ++runs) {
    const std::string input = make(rng);
    LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(input.data()), input.size());
  }
  std::printf("%lld inputs in %.0f s, seed %llu\n", static_cast<long long>(runs), seconds,
              static_cast<unsigned long long>(seed));
  return 0;
}
