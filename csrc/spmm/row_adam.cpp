#include "spmm/row_adam.h"

#include <algorithm>
#include <stdexcept>

#include "core/parallel.h"

namespace xmc::spmm {

namespace {
constexpr int64_t kRows = 256;  // rows of the gradient per unit of work
}

void row_adam(const AdamStep& step, const int64_t* rows, DenseView<float> G, int64_t count, int threads,
              float* W, float* M, float* V) {
  if (!std::all_of(rows, rows + G.rows, [&](int64_t r) { return r >= 0 && r < count; })) {
    throw std::invalid_argument("the gradient names a row that the weight does not have");
  }
  const RowAdamKernels& kernels = row_adam_kernels();
  parallel_items(G.rows, kRows, threads, [&](int64_t i, int) {
    const int64_t at = rows[i] * G.cols;
    kernels.row(step, G.data + i * G.cols, G.cols, W + at, M + at, V + at);
  });
}

}  // namespace xmc::spmm
