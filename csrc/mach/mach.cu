// MACH: the hash table and the scores of a slice of labels, see mach_cuda.h.
#include <cstring>

#include "core/cuda.h"
#include "mach/mach_cuda.h"

namespace xmc::mach {
namespace {

constexpr int kThreads = 256;

// One thread per label: table[l] = (((a l + b) >> 32) B) >> 32, l < labels.
__global__ void hash_kernel(unsigned long long a, unsigned long long b, unsigned long long buckets,
                            int64_t labels, uint16_t* table) {
  const int64_t l = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (l >= labels) return;
  table[l] = static_cast<uint16_t>(((a * static_cast<unsigned long long>(l) + b) >> 32) * buckets >> 32);
}

// Bits that order like the numbers, and back.
__device__ __forceinline__ uint32_t order_of(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float number_of(uint32_t bits) {
  bits = bits >> 31 ? bits & 0x7fffffffu : ~bits;
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

// The output of repetition r for the row and label that `p` and `h` start at.
__device__ __forceinline__ float output(const CudaMach& job, const float* p, const uint16_t* h, int64_t r) {
  return p[r * job.rows * job.buckets + h[r * job.labels]];
}

// The output of this rank (0: the least), found bit by bit from the top: no memory but registers.
__device__ __forceinline__ float ranked(const CudaMach& job, const float* p, const uint16_t* h,
                                        int64_t rank) {
  uint32_t found = 0;
  for (uint32_t bit = 0x80000000u; bit; bit >>= 1) {
    int64_t below = 0;
    for (int64_t r = 0; r < job.repeats; ++r) below += order_of(output(job, p, h, r)) < (found | bit);
    if (below <= rank) found |= bit;
  }
  return number_of(found);
}

// Grid: (blocks of labels, rows). A thread owns one score; neighbours read neighbouring entries of the table,
// and all threads of a block gather from one row of each repetition, which stays in L1 or L2.
__global__ void __launch_bounds__(kThreads) scores_kernel(CudaMach job) {
  const int64_t l = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x, row = blockIdx.y;
  if (l >= job.count) return;
  const uint16_t* h = job.table + job.first + l;
  const float* p = job.p + row * job.buckets;
  float score;
  if (job.aggregate == 0) {
    score = 0.f;
    for (int64_t r = 0; r < job.repeats; ++r) score += output(job, p, h, r);
    score /= static_cast<float>(job.repeats);
  } else if (job.aggregate == 1) {
    score = output(job, p, h, 0);
    for (int64_t r = 1; r < job.repeats; ++r) {
      const float v = output(job, p, h, r);
      score = v < score ? v : score;
    }
  } else {
    score = ranked(job, p, h, job.repeats / 2);
    if (job.repeats % 2 == 0) score = 0.5f * (ranked(job, p, h, job.repeats / 2 - 1) + score);
  }
  job.scores[row * job.count + l] = score;
}

}  // namespace

// a and b of one repetition: mach/hash.h's MachHash.
XMC_CUDA_API int xmc_mach_hash(uint64_t a, uint64_t b, int64_t buckets, int64_t labels, uint16_t* table,
                               void* stream) {
  if (!labels) return 0;
  XMC_LAUNCH(hash_kernel, dim3(cuda::blocks(labels, kThreads)), dim3(kThreads), stream, a, b,
             static_cast<unsigned long long>(buckets), labels, table);
  return cudaGetLastError();
}

// At most 65,535 rows.
XMC_CUDA_API int xmc_mach_scores(const CudaMach* job, void* stream) {
  if (!job->rows || !job->count) return 0;
  const dim3 grid(cuda::blocks(job->count, kThreads), static_cast<unsigned>(job->rows));
  XMC_LAUNCH(scores_kernel, grid, dim3(kThreads), stream, *job);
  return cudaGetLastError();
}

}  // namespace xmc::mach
