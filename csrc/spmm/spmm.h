// Sparse times dense: C = A B, A n x m in CSR (binary when it has no data), B m x k and C n x k row-major.
//
// The work behind truncated SVD and ridge regression on sparse matrices. A row of C is summed in registers,
// in the order of the row's entries, so results do not depend on the number of threads. For A^T pass the CSR
// of the transpose.
#pragma once

#include <cstdint>

#include "core/simd.h"
#include "core/types.h"

namespace xmc::spmm {

struct SpmmKernels {
  // out[0 .. k) = sum over e < count of (values ? values[e] : 1) * B[columns[e] * k + (0 .. k)].
  void (*row)(const int32_t* columns, const float* values, int64_t count, const float* B, int64_t k,
              float* out);
};
XMC_SIMD_TABLE(SpmmKernels, spmm_kernels)

void spmm(CsrView<int32_t, float> A, DenseView<float> B, int threads, float* C);

}  // namespace xmc::spmm
