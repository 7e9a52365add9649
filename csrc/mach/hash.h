// The hash family of MACH (spec: merged-average classifiers via hashing) and what it does to a label matrix.
//
//   h_r(l) = (((a_r l + b_r) mod 2^64) >> 32) B >> 32,   a_r = mix64(s + 2r), b_r = mix64(s + 2r + 1),
//   s = mix64(seed), mix64 of core/rng.h, all in 64-bit arithmetic
// Multiply-add-shift (Dietzfelbinger): 2-universal for 32-bit labels and random a, b; two labels share a
// bucket with probability 1/B (to about 2^-32). Any language with 64-bit unsigned integers computes the same
// buckets.
#pragma once

#include <cstdint>
#include <vector>

#include "core/rng.h"
#include "core/simd.h"
#include "core/types.h"

namespace xmc::mach {

struct MachHash {
  uint64_t a, b;
  uint32_t buckets;  // at most 65,536: a bucket fits 16 bits

  MachHash(uint64_t seed, int64_t r, int64_t n_buckets)
      : a(mix64(mix64(seed) + 2 * static_cast<uint64_t>(r))),
        b(mix64(mix64(seed) + 2 * static_cast<uint64_t>(r) + 1)),
        buckets(static_cast<uint32_t>(n_buckets)) {}

  uint32_t operator()(uint32_t label) const {
    return static_cast<uint32_t>(((a * label + b) >> 32) * buckets >> 32);
  }
};

struct HashKernels {
  // out[i] = h(first + i), i < n
  void (*range)(const MachHash& h, uint32_t first, int64_t n, uint16_t* out);
  // out[i] = h(labels[i]), i < n
  void (*list)(const MachHash& h, const int32_t* labels, int64_t n, uint16_t* out);
  // Rows of buckets, row i being x[indptr[i] - indptr[0] ..]: each sorted and without duplicates, one after
  // the other to `out`, whose end is returned, their lengths to `sizes`. Rows longer than 8 are given to
  // `longer`, which sorts in place and returns the length without duplicates. x may be read, and is changed,
  // up to 8 places beyond its end.
  int32_t* (*sort_rows)(uint16_t* x, const int64_t* indptr, int64_t rows,
                        int64_t (*longer)(uint16_t* row, int64_t n), int32_t* out, int64_t* sizes);
};
XMC_SIMD_TABLE(HashKernels, hash_kernels)

// table[r L + l] = h_r(l), R x L.
void mach_table(uint64_t seed, int64_t repeats, int64_t n_labels, int64_t n_buckets, int threads,
                uint16_t* table);

// Y (n x L, binary) -> n x B, binary, sorted, without duplicates: bucket b where a label hashes to b.
// `indptr` has room for n + 1, `indices` for Y's; returns how many of these are used.
int64_t bucket_matrix(const CsrView<>& Y, const MachHash& hash, int threads, int64_t* indptr,
                      int32_t* indices);

// Labels by bucket: those of (r, b) are labels[offsets[r (B+1) + b] .. offsets[r (B+1) + b + 1]), ascending;
// offsets count from the start of labels.
struct InvertedTable {
  std::vector<int64_t> offsets;  // R (B + 1)
  std::vector<int32_t> labels;   // R L
};
InvertedTable invert_table(const uint16_t* table, int64_t repeats, int64_t n_labels, int64_t n_buckets,
                           int threads);

}  // namespace xmc::mach
