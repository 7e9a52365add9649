// Dots of a row with its candidates' rows, and the gradients.
#include "core/cuda.h"
#include "gather/gather_dot_cuda.h"

namespace xmc::gather {
namespace {

using cuda::load;

constexpr int kWarps = 8;
constexpr int kThreads = 128;

// A warp owns one candidate: its lanes read the row side by side, lane 0 adds their sums in order.
// Grid: candidates / kWarps, block: 32 x kWarps.
__global__ void __launch_bounds__(32 * kWarps) gather_dot_kernel(CudaGatherDot job, float* scores) {
  __shared__ float part[kWarps][33];
  const int64_t place = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.y;
  const int64_t label = place < job.batch * job.width ? job.candidates[place] : -1;
  float sum = 0.f;
  if (label >= 0) {
    const int64_t x = place / job.width * job.dims, row = label * job.dims;
    for (int64_t i = threadIdx.x; i < job.dims; i += 32) {
      sum += load(job.h, job.h_type, x + i) * load(job.table, job.table_type, row + i);
    }
  }
  part[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();  // all lanes done
  if (threadIdx.x == 0 && place < job.batch * job.width) {
    float total = 0.f;
    for (int lane = 0; lane < 32; ++lane) total += part[threadIdx.y][lane];
    scores[place] = total;
  }
}

// A thread owns one dimension of a row of h and walks its candidates. Grid: (batch, dims / kThreads).
__global__ void gather_grad_h_kernel(CudaGatherDot job, const float* g, float* gh) {
  const int64_t b = blockIdx.x, i = static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x;
  if (i >= job.dims) return;
  float sum = 0.f;
  for (int64_t j = b * job.width; j < (b + 1) * job.width; ++j) {
    const int64_t label = job.candidates[j];
    if (label >= 0) sum += g[j] * load(job.table, job.table_type, label * job.dims + i);
  }
  gh[b * job.dims + i] = sum;
}

// A thread owns one dimension of a label that occurs: its entries are places[starts[u] .. starts[u + 1]).
// Grid: (labels that occur, dims / kThreads).
__global__ void gather_grad_rows_kernel(CudaGatherDot job, const float* g, const int64_t* starts,
                                        const int64_t* places, float* rows) {
  const int64_t u = blockIdx.x, i = static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x;
  if (i >= job.dims) return;
  float sum = 0.f;
  for (int64_t e = starts[u]; e < starts[u + 1]; ++e) {
    sum += g[places[e]] * load(job.h, job.h_type, places[e] / job.width * job.dims + i);
  }
  rows[u * job.dims + i] = sum;
}

}  // namespace

XMC_CUDA_API int xmc_gather_dot(const CudaGatherDot* job, float* scores, void* stream) {
  if (!job->batch || !job->width) return 0;
  const dim3 grid(cuda::blocks(job->batch * job->width, kWarps)), block(32, kWarps);
  XMC_LAUNCH(gather_dot_kernel, grid, block, stream, *job, scores);
  return cudaGetLastError();
}

XMC_CUDA_API int xmc_gather_dot_grad_h(const CudaGatherDot* job, const float* g, float* gh, void* stream) {
  if (!job->batch || !job->dims) return 0;
  const dim3 grid(static_cast<unsigned>(job->batch), cuda::blocks(job->dims, kThreads));
  XMC_LAUNCH(gather_grad_h_kernel, grid, dim3(kThreads), stream, *job, g, gh);
  return cudaGetLastError();
}

XMC_CUDA_API int xmc_gather_dot_grad_rows(const CudaGatherDot* job, const float* g, int64_t n,
                                          const int64_t* starts, const int64_t* places, float* rows,
                                          void* stream) {
  if (!n || !job->dims) return 0;
  const dim3 grid(static_cast<unsigned>(n), cuda::blocks(job->dims, kThreads));
  XMC_LAUNCH(gather_grad_rows_kernel, grid, dim3(kThreads), stream, *job, g, starts, places, rows);
  return cudaGetLastError();
}

}  // namespace xmc::gather
