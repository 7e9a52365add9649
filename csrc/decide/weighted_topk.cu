// Dense weighted top-k, see weighted_topk_cuda.h.
#include <cmath>
#include <cstring>

#include "core/cuda.h"
#include "decide/weighted_topk_cuda.h"

namespace xmc::decide {
namespace {

using Key = unsigned long long;  // 0: none

constexpr int kThreads = 256;
constexpr int kOwn = 8;  // keys of a thread and tile
constexpr int kTile = kThreads * kOwn;

// Order-preserving bits of the gain above, lower labels larger below. NaN has the bits 0, less than any
// other.
__device__ __forceinline__ Key key_of(float gain, int64_t label) {
  gain += 0.f;  // -0 becomes 0
  uint32_t bits;
  memcpy(&bits, &gain, sizeof bits);
  bits = gain != gain ? 0u : bits >> 31 ? ~bits : bits | 0x80000000u;
  return static_cast<Key>(bits) << 32 | (0xffffffffu - static_cast<uint32_t>(label));
}

__device__ __forceinline__ float gain_of(Key key) {
  auto bits = static_cast<uint32_t>(key >> 32);
  bits = bits == 0 ? 0x7fc00000u : bits >> 31 ? bits & 0x7fffffffu : ~bits;
  float gain;
  memcpy(&gain, &bits, sizeof gain);
  return gain;
}

// How many of the n keys, in descending order, are larger.
__device__ __forceinline__ int larger(const Key* sorted, int n, Key key) {
  int low = 0;
  while (low < n) {
    const int middle = (low + n) / 2;
    if (sorted[middle] > key) {
      low = middle + 1;
    } else {
      n = middle;
    }
  }
  return low;
}

// Descending bitonic sort of `size` keys (a power of two) by the whole block. Ends with a barrier.
__device__ __forceinline__ void sort_keys(Key* keys, int size) {
  const int thread = static_cast<int>(threadIdx.x);
  for (int run = 2; run <= size; run *= 2) {
    for (int gap = run / 2; gap; gap /= 2) {
      for (int i = thread; i < size / 2; i += kThreads) {
        const int low = i / gap * 2 * gap + i % gap, high = low + gap;
        const Key x = keys[low], y = keys[high];
        if ((x < y) == ((low & run) == 0)) {
          keys[low] = y;
          keys[high] = x;
        }
      }
      __syncthreads();  // compared
    }
  }
}

// The key of entry e of a row: the gain of label e, or entry e of a list of keys (kMerge).
template <bool kMerge>
__device__ __forceinline__ Key entry(const CudaTopk& job, const Key* list, int64_t row, int64_t e) {
  if (kMerge) return list[e];
  const float eta = job.eta[row * job.stride + e], offset = job.b ? job.b[e] : 0.f;
  return key_of(job.a ? fmaf(job.a[e], eta, offset) : eta + offset, e);
}

// Grid: (rows, segments). Block (i, s) writes the k largest keys of segment s of row i to
// out[i * row_step + s * k], 0 where there are too few. Entries: labels, or (kMerge, one segment) the
// `entries` keys at from[i * entries]. Only keys below ceilings[i * job.k] count, unless it is null.
template <bool kMerge>
__global__ void __launch_bounds__(kThreads) topk_kernel(CudaTopk job, const Key* from, int64_t entries, int k,
                                                        Key* out, int64_t row_step, const Key* ceilings) {
  __shared__ Key best[2][kTopkKept];
  __shared__ Key extra[kTile];
  __shared__ int counts[2][kThreads];
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t row = blockIdx.x, begin = static_cast<int64_t>(blockIdx.y) * job.segment;
  const int64_t end = kMerge || begin + job.segment > entries ? entries : begin + job.segment;
  const Key* list = kMerge ? from + row * entries : nullptr;
  const Key ceiling = ceilings ? ceilings[row * job.k] : ~Key{0};
  int now = 0;  // which best[] is current
  for (int i = thread; i < k; i += kThreads) best[0][i] = 0;
  __syncthreads();  // empty

  for (int64_t tile = begin; tile < end; tile += kTile) {
    const Key least = best[now][k - 1];
    Key mine[kOwn];
    int found = 0;
    for (int j = 0; j < kOwn; ++j) {
      const int64_t e = tile + j * kThreads + thread;
      mine[j] = e < end ? entry<kMerge>(job, list, row, e) : 0;
      if (mine[j] <= least || mine[j] >= ceiling) mine[j] = 0;
      found += mine[j] != 0;
    }
    if (!__syncthreads_or(found)) continue;
    // Pack what was found: inclusive sums of the counts.
    int turn = 0;
    counts[0][thread] = found;
    __syncthreads();  // counted
    for (int gap = 1; gap < kThreads; gap *= 2, turn ^= 1) {
      counts[turn ^ 1][thread] = counts[turn][thread] + (thread >= gap ? counts[turn][thread - gap] : 0);
      __syncthreads();  // summed
    }
    const int total = counts[turn][kThreads - 1];
    int place = counts[turn][thread] - found, size = 1;
    for (int j = 0; j < kOwn; ++j) {
      if (mine[j]) extra[place++] = mine[j];
    }
    while (size < total) size *= 2;
    for (int i = total + thread; i < size; i += kThreads) extra[i] = 0;
    __syncthreads();  // packed
    sort_keys(extra, size);
    // Merge by rank into the other best[].
    const int other = now ^ 1;
    for (int i = thread; i < k; i += kThreads) {
      const int rank = i + larger(extra, total, best[now][i]);
      if (rank < k) best[other][rank] = best[now][i];
    }
    for (int i = thread; i < total; i += kThreads) {
      const int rank = i + larger(best[now], k, extra[i]);
      if (rank < k) best[other][rank] = extra[i];
    }
    now = other;
    __syncthreads();  // merged
  }
  Key* to = out + row * row_step + static_cast<int64_t>(blockIdx.y) * k;
  for (int i = thread; i < k; i += kThreads) to[i] = best[now][i];
}

__global__ void decode_kernel(const Key* keys, int64_t count, float* gains, int64_t* ids) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= count) return;
  gains[i] = gain_of(keys[i]);
  ids[i] = 0xffffffffu - static_cast<uint32_t>(keys[i]);
}

}  // namespace

XMC_CUDA_API int xmc_decide_weighted_topk(const CudaTopk* given, void* stream) {
  const CudaTopk& job = *given;
  if (!job.rows || !job.k) return 0;
  const unsigned rows = static_cast<unsigned>(job.rows), segments = cuda::blocks(job.labels, job.segment);
  auto* keys = reinterpret_cast<Key*>(job.keys);
  auto* parts = reinterpret_cast<Key*>(job.parts);
  for (int64_t first = 0; first < job.k; first += kTopkKept) {
    const int k = static_cast<int>(job.k - first < kTopkKept ? job.k - first : kTopkKept);
    const int64_t entries = static_cast<int64_t>(segments) * k;
    const Key* ceilings = first ? keys + first - 1 : nullptr;  // the last ones found so far
    Key* out = segments == 1 ? keys + first : parts;
    XMC_LAUNCH(topk_kernel<false>, dim3(rows, segments), dim3(kThreads), stream, job, nullptr, job.labels, k,
               out, segments == 1 ? job.k : entries, ceilings);
    if (segments == 1) continue;
    XMC_LAUNCH(topk_kernel<true>, dim3(rows), dim3(kThreads), stream, job, parts, entries, k, keys + first,
               job.k, nullptr);
  }
  XMC_LAUNCH(decode_kernel, dim3(cuda::blocks(job.rows * job.k, kThreads)), dim3(kThreads), stream, keys,
             job.rows * job.k, job.gains, job.ids);
  return cudaGetLastError();
}

}  // namespace xmc::decide
