// Transposition in and out, forward, loss.
#include "core/cuda.h"
#include "fanin/fanin_cuda.h"

namespace xmc::fanin {
namespace {

using cuda::load;
using cuda::store;

constexpr int kLabels = 32;  // labels of a thread block
constexpr int kWarps = 8;    // each owns kLabels / kWarps of them
constexpr int kOwn = kLabels / kWarps;
constexpr int kInputs = 32;  // connections staged at a time

// to[c][r] = from[r][c]; rows past the end are zero. Grid: 32 x 32 patches, block: 32 x 8.
__global__ void transpose_in_kernel(const void* from, int type, int64_t stride, int64_t rows, int64_t cols,
                                    float* to, int64_t padded) {
  __shared__ float patch[32][33];
  const int64_t c0 = static_cast<int64_t>(blockIdx.x) * 32, r0 = static_cast<int64_t>(blockIdx.y) * 32;
  for (int k = threadIdx.y; k < 32; k += 8) {
    const int64_t r = r0 + k, c = c0 + threadIdx.x;
    patch[k][threadIdx.x] = r < rows && c < cols ? load(from, type, r * stride + c) : 0.f;
  }
  __syncthreads();
  for (int k = threadIdx.y; k < 32; k += 8) {
    const int64_t c = c0 + k, r = r0 + threadIdx.x;
    if (c < cols && r < padded) to[c * padded + r] = patch[threadIdx.x][k];
  }
}

// to[r][c] = from[c][r]
__global__ void transpose_out_kernel(const float* from, int64_t padded, int64_t rows, int64_t cols, void* to,
                                     int type, int64_t stride) {
  __shared__ float patch[32][33];
  const int64_t c0 = static_cast<int64_t>(blockIdx.x) * 32, r0 = static_cast<int64_t>(blockIdx.y) * 32;
  for (int k = threadIdx.y; k < 32; k += 8) {
    const int64_t c = c0 + k, r = r0 + threadIdx.x;
    patch[k][threadIdx.x] = c < cols && r < padded ? from[c * padded + r] : 0.f;
  }
  __syncthreads();
  for (int k = threadIdx.y; k < 32; k += 8) {
    const int64_t r = r0 + k, c = c0 + threadIdx.x;
    if (r < rows && c < cols) store(to, type, r * stride + c, patch[threadIdx.x][k]);
  }
}

// Grid: (label blocks, batch blocks), block: 32 lanes x kWarps. A lane owns two batch rows, a warp kOwn
// labels. kShared: the labels of a warp share their index list, so that a feature is loaded once for all of
// them.
template <bool kShared>
__global__ void __launch_bounds__(32 * kWarps, 4)
    forward_kernel(CudaLayer layer, const float* xt, int64_t padded, int64_t batch, void* out, int out_type) {
  __shared__ uint32_t list[kLabels][kInputs];
  __shared__ float weight[kLabels][kInputs];
  __shared__ float tile[kBatch][kLabels + 1];
  const int lane = threadIdx.x, warp = threadIdx.y, thread = warp * 32 + lane;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kLabels;
  const int64_t row = static_cast<int64_t>(blockIdx.y) * kBatch;
  const float2* x = reinterpret_cast<const float2*>(xt + row) + lane;
  float2 sum[kOwn];
  for (int j = 0; j < kOwn; ++j) sum[j] = make_float2(0.f, 0.f);

  for (int64_t i0 = 0; i0 < layer.fan_in; i0 += kInputs) {
    const int n = static_cast<int>(layer.fan_in - i0 < kInputs ? layer.fan_in - i0 : kInputs);
    for (int k = thread; k < kLabels * kInputs; k += 32 * kWarps) {
      const int l = k / kInputs, i = k % kInputs;
      const int64_t label = first + l;
      const bool inside = label < layer.labels && i < n;
      const int64_t at = inside ? label / layer.group * layer.fan_in + i0 + i : 0;
      uint32_t feature = 0;
      if (inside) {
        feature = layer.index_bits == 16 ? static_cast<const uint16_t*>(layer.indices)[at]
                                         : static_cast<const uint32_t*>(layer.indices)[at];
      }
      list[l][i] = feature;
      weight[l][i] = inside ? load(layer.weights, layer.weight_type, label * layer.fan_in + i0 + i) : 0.f;
    }
    __syncthreads();  // staged
    for (int i = 0; i < n; ++i) {
      float2 v = make_float2(0.f, 0.f);
      for (int j = 0; j < kOwn; ++j) {
        const int l = warp * kOwn + j;
        if (!kShared || j == 0) v = x[list[l][i] * (padded / 2)];
        sum[j].x += weight[l][i] * v.x;
        sum[j].y += weight[l][i] * v.y;
      }
    }
    __syncthreads();  // used up
  }
  for (int j = 0; j < kOwn; ++j) {
    const int l = warp * kOwn + j;
    const int64_t label = first + l;
    const float b = layer.bias && label < layer.labels ? load(layer.bias, layer.bias_type, label) : 0.f;
    tile[2 * lane][l] = sum[j].x + b;
    tile[2 * lane + 1][l] = sum[j].y + b;
  }
  __syncthreads();  // tile complete: write it along the labels
  for (int r = warp; r < kBatch; r += kWarps) {
    if (row + r < batch && first + lane < layer.labels) {
      store(out, out_type, (row + r) * layer.labels + first + lane, tile[r][lane]);
    }
  }
}

// One thread block per batch row and slice of labels, in place: logits -> scale * gradient, y = -1 everywhere
// but where `positive` (batch x labels bytes) is set. part[blockIdx.y][blockIdx.x] gets the slice's loss.
constexpr int kLossThreads = 256, kLossSlice = 4096;
__global__ void loss_kernel(float* z, const uint8_t* positive, int64_t labels, int kind, float scale,
                            float* part) {
  __shared__ float sum[kLossThreads];
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kLossSlice;
  const int64_t end = begin + kLossSlice < labels ? begin + kLossSlice : labels;
  const int64_t row = static_cast<int64_t>(blockIdx.y) * labels;
  float mine = 0.f;
  for (int64_t l = begin + threadIdx.x; l < end; l += kLossThreads) {
    const float y = positive[row + l] ? 1.f : -1.f, m = y * z[row + l];
    float value, slope;
    if (kind == 0) {
      const float h = m < 1.f ? 1.f - m : m != m ? m : 0.f;
      value = h * h;
      slope = -2.f * y * h;
    } else {
      const float u = expf(-fabsf(m));
      value = log1pf(u) + (m < 0.f ? -m : 0.f);
      slope = -y * (m > 0.f ? u : 1.f) / (1.f + u);
    }
    mine += value;
    z[row + l] = scale * slope;
  }
  sum[threadIdx.x] = mine;
  for (int half = kLossThreads / 2; half; half /= 2) {
    __syncthreads();
    if (static_cast<int>(threadIdx.x) < half) sum[threadIdx.x] += sum[threadIdx.x + half];
  }
  if (threadIdx.x == 0) part[static_cast<int64_t>(blockIdx.y) * gridDim.x + blockIdx.x] = scale * sum[0];
}

}  // namespace

XMC_CUDA_API int xmc_fanin_transpose_in(const void* from, int type, int64_t stride, int64_t rows,
                                        int64_t cols, float* to, int64_t padded, void* stream) {
  if (!padded || !cols) return 0;
  const dim3 grid(cuda::blocks(cols, 32), cuda::blocks(padded, 32));
  XMC_LAUNCH(transpose_in_kernel, grid, dim3(32, 8), stream, from, type, stride, rows, cols, to, padded);
  return cudaGetLastError();
}

XMC_CUDA_API int xmc_fanin_transpose_out(const float* from, int64_t padded, int64_t rows, int64_t cols,
                                         void* to, int type, int64_t stride, void* stream) {
  if (!rows || !cols) return 0;
  const dim3 grid(cuda::blocks(cols, 32), cuda::blocks(rows, 32));
  XMC_LAUNCH(transpose_out_kernel, grid, dim3(32, 8), stream, from, padded, rows, cols, to, type, stride);
  return cudaGetLastError();
}

XMC_CUDA_API int xmc_fanin_forward(const CudaLayer* layer, const float* xt, int64_t padded, int64_t batch,
                                   void* out, int out_type, void* stream) {
  if (!batch || !layer->labels) return 0;
  const dim3 grid(cuda::blocks(layer->labels, kLabels), cuda::blocks(batch, kBatch)), block(32, kWarps);
  auto kernel = layer->group % kOwn == 0 ? forward_kernel<true> : forward_kernel<false>;
  XMC_LAUNCH(kernel, grid, block, stream, *layer, xt, padded, batch, out, out_type);
  return cudaGetLastError();
}

XMC_CUDA_API int64_t xmc_fanin_loss_parts(int64_t labels) {
  return cuda::blocks(labels, kLossSlice);
}

XMC_CUDA_API int xmc_fanin_loss(float* z, const uint8_t* positive, int64_t batch, int64_t labels, int kind,
                                float scale, float* part, void* stream) {
  if (!batch || !labels) return 0;
  const dim3 grid(cuda::blocks(labels, kLossSlice), static_cast<unsigned>(batch));
  XMC_LAUNCH(loss_kernel, grid, dim3(kLossThreads), stream, z, positive, labels, kind, scale, part);
  return cudaGetLastError();
}

}  // namespace xmc::fanin
