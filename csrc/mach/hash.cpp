#include "mach/hash.h"

#include <algorithm>

#include "core/parallel.h"

namespace xmc {
namespace {

constexpr int64_t kLabels = 1 << 16;  // hashed per block
constexpr int64_t kRows = 1 << 14;    // rows per block of the label matrix

size_t at(int64_t i) {
  return static_cast<size_t>(i);
}

// Sorted without duplicates, in place; returns the new length. Rows are short: insertion, else std::sort.
int64_t sort_unique(int32_t* x, int64_t n) {
  if (n > 24) {
    std::sort(x, x + n);
    return std::unique(x, x + n) - x;
  }
  int64_t size = 0;
  for (int64_t i = 0; i < n; ++i) {
    const int32_t value = x[i];
    int64_t j = size;
    while (j > 0 && x[j - 1] > value) --j;
    if (j > 0 && x[j - 1] == value) continue;
    for (int64_t m = size; m > j; --m) x[m] = x[m - 1];
    x[j] = value;
    ++size;
  }
  return size;
}

}  // namespace

std::vector<uint16_t> mach_table(uint64_t seed, int64_t repeats, int64_t n_labels, int64_t n_buckets,
                                 int threads) {
  std::vector<uint16_t> table(at(repeats * n_labels));
  const int64_t blocks = chunk_count(n_labels, kLabels);
  const HashKernels& kernels = hash_kernels();
  parallel_for(repeats * blocks, threads, [&](int64_t i, int) {
    const int64_t r = i / blocks, first = i % blocks * kLabels;
    const MachHash hash(seed, r, n_buckets);
    kernels.range(hash.a, hash.b, hash.buckets, static_cast<uint32_t>(first),
                  std::min(kLabels, n_labels - first), table.data() + r * n_labels + first);
  });
  return table;
}

BucketMatrix bucket_matrix(const CsrView<>& Y, const MachHash& hash, int threads) {
  // Buckets go to where the labels are, row by row; then the gaps that duplicates leave are closed.
  BucketMatrix m;
  m.indptr.assign(at(Y.rows) + 1, 0);
  m.indices.resize(at(Y.nnz()));
  const int64_t blocks = chunk_count(Y.rows, kRows);
  parallel_for(blocks, threads, [&](int64_t block, int) {
    const int64_t first = block * kRows, end = std::min(Y.rows, first + kRows);
    for (int64_t e = Y.begin(first); e < Y.end(end - 1); ++e) {
      m.indices[at(e)] = static_cast<int32_t>(hash(static_cast<uint32_t>(Y.indices[e])));
    }
    int32_t* out = m.indices.data() + Y.begin(first);
    for (int64_t row = first; row < end; ++row) {
      int32_t* own = m.indices.data() + Y.begin(row);
      const int64_t n = sort_unique(own, Y.size(row));
      if (out != own) std::copy(own, own + n, out);
      out += n;
      m.indptr[at(row) + 1] = n;
    }
  });
  for (int64_t row = 0; row < Y.rows; ++row) m.indptr[at(row) + 1] += m.indptr[at(row)];
  for (int64_t block = 1; block < blocks; ++block) {
    const int64_t first = block * kRows, end = std::min(Y.rows, first + kRows);
    const int64_t from = Y.begin(first), to = m.indptr[at(first)];
    if (from != to) {
      std::copy(m.indices.begin() + from, m.indices.begin() + from + (m.indptr[at(end)] - to),
                m.indices.begin() + to);
    }
  }
  m.indices.resize(at(m.indptr.back()));
  return m;
}

InvertedTable invert_table(const uint16_t* table, int64_t repeats, int64_t n_labels, int64_t n_buckets,
                           int threads) {
  InvertedTable t;
  t.offsets.assign(at(repeats * (n_buckets + 1)), 0);
  t.labels.resize(at(repeats * n_labels));
  parallel_for(repeats, threads, [&](int64_t r, int) {
    const uint16_t* h = table + r * n_labels;
    int64_t* offsets = t.offsets.data() + r * (n_buckets + 1);
    for (int64_t l = 0; l < n_labels; ++l) ++offsets[h[l] + 1];
    offsets[0] = r * n_labels;
    for (int64_t b = 0; b < n_buckets; ++b) offsets[b + 1] += offsets[b];
    std::vector<int64_t> next(offsets, offsets + n_buckets);
    for (int64_t l = 0; l < n_labels; ++l) t.labels[at(next[h[l]]++)] = static_cast<int32_t>(l);
  });
  return t;
}

}  // namespace xmc
