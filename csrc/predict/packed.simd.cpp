#include "predict/packed.h"

#include "core/vec.h"

namespace xmc::predict::XMC_SIMD_NS {
using namespace ::xmc::XMC_SIMD_NS;
namespace {

void add(const uint8_t* from, const uint8_t* to, uint32_t width, float x, const float* level, float* score,
         uint32_t mask) {
  for_postings(from, to, width,
               [=](uint32_t place, uint8_t code) { score[place & mask] += x * level[code]; });
}

void start(const float* weight, float x, int64_t n, float* score) {
  if (!weight) {
    ::memset(score, 0, static_cast<size_t>(n) * sizeof(float));
    return;
  }
  for (int64_t p = 0; p < n; ++p) score[p] = weight[p] * x;
}

// n is a multiple of kTile here and below: the scores are padded.
void calibrate(const float* scale, const float* shift, int64_t n, float* score) {
  for (int64_t p = 0; p < n; p += kWidth) {
    store(score + p, fma(load(scale + p), load(score + p), load(shift + p)));
  }
}

int64_t next(const float* score, int64_t from, int64_t n, float threshold) {
  const vf least = splat(threshold);
  for (; from < n; from += kTile) {
    uint32_t below = (1u << kWidth) - 1;
    for (int64_t p = from; p < from + kTile; p += kWidth) below &= gt(least, load(score + p));
    if (below != (1u << kWidth) - 1) break;
  }
  return from;
}

}  // namespace

const PackedKernels packed_kernels_table = {&add, &start, &calibrate, &next};

}  // namespace xmc::predict::XMC_SIMD_NS
