#include "mach/hash.h"

#include <algorithm>

#include "core/parallel.h"

namespace xmc::mach {
namespace {

constexpr int64_t kLabels = 1 << 16;  // hashed per block
constexpr int64_t kRows = 1 << 14;    // rows per block of the label matrix
constexpr int64_t kStep = 256;        // rows hashed and sorted at a time

int64_t sort_unique(uint16_t* x, int64_t n) {
  std::sort(x, x + n);
  return std::unique(x, x + n) - x;
}

}  // namespace

void mach_table(uint64_t seed, int64_t repeats, int64_t n_labels, int64_t n_buckets, int threads,
                uint16_t* table) {
  const int64_t blocks = chunk_count(n_labels, kLabels);
  const HashKernels& kernels = hash_kernels();
  parallel_for(repeats * blocks, threads, [&](int64_t i, int) {
    const int64_t r = i / blocks, first = i % blocks * kLabels;
    kernels.range(MachHash(seed, r, n_buckets), static_cast<uint32_t>(first),
                  std::min(kLabels, n_labels - first), table + r * n_labels + first);
  });
}

int64_t bucket_matrix(const CsrView<>& Y, const MachHash& hash, int threads, int64_t* indptr,
                      int32_t* indices) {
  // Buckets go to where the labels are, block by block; then the gaps that duplicates leave are closed. One
  // thread leaves none.
  const HashKernels& kernels = hash_kernels();
  const int64_t blocks = chunk_count(Y.rows, kRows);
  std::vector<std::vector<uint16_t>> scratch(std::max(threads, 1));
  const bool alone = threads <= 1;
  int32_t* next = indices;
  indptr[0] = 0;
  parallel_for(blocks, threads, [&](int64_t block, int thread) {
    const int64_t first = block * kRows, end = std::min(Y.rows, first + kRows);
    std::vector<uint16_t>& x = scratch[thread];
    int32_t* out = alone ? next : indices + Y.begin(first);
    for (int64_t row = first; row < end; row += kStep) {
      const int64_t stop = std::min(end, row + kStep), n = Y.begin(stop) - Y.begin(row);
      if (static_cast<int64_t>(x.size()) < n + 8) x.resize(n + 8);
      kernels.list(hash, Y.indices + Y.begin(row), n, x.data());
      out = kernels.sort_rows(x.data(), Y.indptr + row, stop - row, &sort_unique, out, indptr + row + 1);
    }
    if (alone) next = out;
  });
  for (int64_t row = 0; row < Y.rows; ++row) indptr[row + 1] += indptr[row];
  for (int64_t block = 1; block < blocks && !alone; ++block) {
    const int64_t first = block * kRows, end = std::min(Y.rows, first + kRows);
    const int64_t from = Y.begin(first), to = indptr[first];
    if (from != to) std::copy(indices + from, indices + from + (indptr[end] - to), indices + to);
  }
  return indptr[Y.rows];
}

InvertedTable invert_table(const uint16_t* table, int64_t repeats, int64_t n_labels, int64_t n_buckets,
                           int threads) {
  InvertedTable t;
  t.offsets.assign(repeats * (n_buckets + 1), 0);
  t.labels.resize(repeats * n_labels);
  parallel_for(repeats, threads, [&](int64_t r, int) {
    const uint16_t* h = table + r * n_labels;
    int64_t* offsets = t.offsets.data() + r * (n_buckets + 1);
    for (int64_t l = 0; l < n_labels; ++l) ++offsets[h[l] + 1];
    offsets[0] = r * n_labels;
    for (int64_t b = 0; b < n_buckets; ++b) offsets[b + 1] += offsets[b];
    std::vector<int64_t> next(offsets, offsets + n_buckets);
    for (int64_t l = 0; l < n_labels; ++l) t.labels[next[h[l]]++] = static_cast<int32_t>(l);
  });
  return t;
}

}  // namespace xmc::mach
