#include "spmm/spmm.h"

#include <algorithm>

#include "core/parallel.h"

namespace xmc::spmm {

namespace {
constexpr int64_t kRows = 64;  // rows of A per unit of work
}

void spmm(CsrView<int32_t, float> A, DenseView<float> B, int threads, float* C) {
  const SpmmKernels& kernels = spmm_kernels();
  parallel_items(A.rows, kRows, threads, [&](int64_t i, int) {
    const int64_t first = A.begin(i);
    kernels.row(A.indices + first, A.data ? A.data + first : nullptr, A.size(i), B.data, B.cols,
                C + i * B.cols);
  });
}

}  // namespace xmc::spmm
