// Scores of a few labels per row (LightXML's discriminator, eq. 3 and 4), forward and backward:
//
//   scores[b, j] = h[b] . E[c[b, j]]          gh[b] = sum_j g[b, j] E[c[b, j]]
//   gE[l]        = sum over (b, j) with c[b, j] = l of g[b, j] h[b]      (only rows of labels that occur)
//
// h: batch x dims, E: labels x dims, c and g: batch x width, all row-major float32 (c: int64). c < 0 is
// padding: score 0, no gradient; c >= labels throws std::invalid_argument. A row of E is read once per
// candidate and nothing of size batch x width x dims exists. Neighbouring candidates that are neighbouring
// labels read memory in order: keep E in cluster order.
#pragma once

#include <cstdint>
#include <vector>

#include "core/buffer.h"
#include "core/simd.h"

namespace xmc::gather {

struct GatherDot {
  int64_t batch, width, dims, labels;
  const int64_t* candidates;
};

void gather_dot(const GatherDot& shape, const float* h, const float* E, float* scores, int threads);
void gather_dot_grad_h(const GatherDot& shape, const float* g, const float* E, float* gh, int threads);

struct RowGradients {
  std::vector<int64_t> labels;  // that occur, ascending
  Buffer<float> values;         // labels x dims
};
RowGradients gather_dot_grad_rows(const GatherDot& shape, const float* g, const float* h, int threads);

struct GatherDotKernels {
  // out[j] = x . rows[ids[j]], 0 where ids[j] < 0.
  void (*dots)(const float* x, const float* rows, const int64_t* ids, int64_t n, int64_t dims, float* out);
  // out = sum_j a[j] rows[ids[j]] over ids[j] >= 0.
  void (*combine)(const float* a, const float* rows, const int64_t* ids, int64_t n, int64_t dims, float* out);
};
XMC_SIMD_TABLE(GatherDotKernels, gather_dot_kernels)

}  // namespace xmc::gather
