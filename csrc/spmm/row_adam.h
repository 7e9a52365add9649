// One step of Adam on some rows of a weight W (rows x k, row-major), the rows that a sparse gradient names:
//
//   m = m + (1 - beta1) (g - m),  v = beta2 v + (1 - beta2) g²,  w = w - rate m / (sqrt(v / scale) + eps)
//
// with rate = lr / (1 - beta1^t) and scale = 1 - beta2^t. Moments of other rows stay as they are. One pass
// over the rows: each value is read and written once.
#pragma once

#include <cstdint>

#include "core/simd.h"
#include "core/types.h"

namespace xmc::spmm {

struct AdamStep {
  float beta1, beta2, eps, rate, scale;
};

struct RowAdamKernels {
  void (*row)(const AdamStep& step, const float* g, int64_t k, float* w, float* m, float* v);
};
XMC_SIMD_TABLE(RowAdamKernels, row_adam_kernels)

// G holds the gradient of W's row rows[i] in its row i; each row occurs at most once. W, M, V: count x
// G.cols.
void row_adam(const AdamStep& step, const int64_t* rows, DenseView<float> G, int64_t count, int threads,
              float* W, float* M, float* V);

}  // namespace xmc::spmm
