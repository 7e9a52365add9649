// Gradients for features and weights, dense and sparse.
#include "core/cuda.h"
#include "fanin/fanin_cuda.h"

namespace xmc::fanin {
namespace {

using cuda::load;
using cuda::store;

constexpr int kWarps = 8;

__device__ __forceinline__ int64_t feature_at(const CudaLayer& layer, int64_t at) {
  return layer.index_bits == 16 ? static_cast<const uint16_t*>(layer.indices)[at]
                                : static_cast<const int32_t*>(layer.indices)[at];
}

// A warp owns a feature for kBatch rows: gxt[d] += sum over its connections e (positions list * s + i, in
// order) and the labels of that list of w g. Grid: (features / kWarps, batch blocks), block: 32 x kWarps.
__global__ void __launch_bounds__(32 * kWarps)
    grad_features_kernel(CudaLayer layer, const float* gt, int64_t padded, const int64_t* starts,
                         const int32_t* connections, float* gxt) {
  const int64_t d = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.y;
  if (d >= layer.features) return;
  const int64_t row = static_cast<int64_t>(blockIdx.y) * kBatch;
  const float2* g = reinterpret_cast<const float2*>(gt + row) + threadIdx.x;
  float2* to = reinterpret_cast<float2*>(gxt + d * padded + row) + threadIdx.x;
  float2 sum = *to;
  for (int64_t e = starts[d]; e < starts[d + 1]; ++e) {
    const int64_t list = connections[e] / layer.fan_in, i = connections[e] % layer.fan_in;
    const int64_t first = list * layer.group;
    const int64_t end = first + layer.group < layer.labels ? first + layer.group : layer.labels;
    for (int64_t l = first; l < end; ++l) {
      const float w = load(layer.weights, layer.weight_type, l * layer.fan_in + i);
      const float2 v = g[l * (padded / 2)];
      sum.x += w * v.x;
      sum.y += w * v.y;
    }
  }
  *to = sum;
}

// A thread owns connection i of a label: its lanes read g[b, l] from shared memory and x[b, idx] from the
// row. Grid: label blocks of kWarps labels, block: 32 connections x kWarps labels.
constexpr int kRows = 32;  // batch rows of g staged at a time
__global__ void __launch_bounds__(32 * kWarps)
    grad_weights_kernel(CudaLayer layer, const void* x, int x_type, const void* g, int g_type,
                        int64_t g_stride, int64_t batch, void* gw, int gw_type, void* gbias, int gbias_type) {
  __shared__ float tile[kRows][kWarps];
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kWarps, label = first + threadIdx.y;
  const int thread = threadIdx.y * 32 + threadIdx.x;
  const bool inside = label < layer.labels;
  const int64_t list = label / layer.group * layer.fan_in;
  for (int64_t i0 = 0; i0 < layer.fan_in; i0 += 32) {
    const int64_t i = i0 + threadIdx.x;
    const bool mine = inside && i < layer.fan_in;
    const int64_t d = mine ? feature_at(layer, list + i) : 0;
    float sum = 0.f, bias = 0.f;
    for (int64_t b0 = 0; b0 < batch; b0 += kRows) {
      const int n = static_cast<int>(batch - b0 < kRows ? batch - b0 : kRows);
      for (int k = thread; k < kRows * kWarps; k += 32 * kWarps) {
        const int r = k / kWarps, l = k % kWarps;
        tile[r][l] =
            r < n && first + l < layer.labels ? load(g, g_type, (b0 + r) * g_stride + first + l) : 0.f;
      }
      __syncthreads();  // g staged
      for (int r = 0; r < n; ++r) {
        const float v = tile[r][threadIdx.y];
        if (mine) sum += v * load(x, x_type, (b0 + r) * layer.features + d);
        bias += v;
      }
      __syncthreads();  // used up
    }
    if (mine) store(gw, gw_type, label * layer.fan_in + i, sum);
    if (gbias && inside && i == 0) store(gbias, gbias_type, label, bias);
  }
}

// Sparse g (CSR, batch x labels). One thread block per batch row; its threads share the connections of an
// entry, which name different features: no two of them meet.
constexpr int kThreads = 128;
__global__ void grad_features_sparse_kernel(CudaLayer layer, const int64_t* crow, const int32_t* col,
                                            const float* values, float* gx) {
  const int64_t b = blockIdx.x;
  for (int64_t e = crow[b]; e < crow[b + 1]; ++e) {
    const int64_t label = col[e], list = label / layer.group * layer.fan_in;
    for (int64_t i = threadIdx.x; i < layer.fan_in; i += kThreads) {
      const float w = load(layer.weights, layer.weight_type, label * layer.fan_in + i);
      gx[b * layer.features + feature_at(layer, list + i)] += values[e] * w;
    }
    __syncthreads();  // the next entry may name the same features
  }
}

// One thread block per label that occurs: labels[u] with the entries starts[u] .. starts[u + 1) of (row,
// value).
__global__ void grad_weights_sparse_kernel(CudaLayer layer, const void* x, int x_type, const int64_t* labels,
                                           const int64_t* starts, const int64_t* rows, const float* values,
                                           float* gw, float* gbias) {
  const int64_t u = blockIdx.x, list = labels[u] / layer.group * layer.fan_in;
  for (int64_t i = threadIdx.x; i < layer.fan_in; i += kThreads) {
    const int64_t d = feature_at(layer, list + i);
    float sum = 0.f, bias = 0.f;
    for (int64_t e = starts[u]; e < starts[u + 1]; ++e) {
      sum += values[e] * load(x, x_type, rows[e] * layer.features + d);
      bias += values[e];
    }
    gw[u * layer.fan_in + i] = sum;
    if (i == 0) gbias[u] = bias;
  }
}

}  // namespace

XMC_CUDA_API int xmc_fanin_grad_features(const CudaLayer* layer, const float* gt, int64_t padded,
                                         const int64_t* starts, const int32_t* connections, float* gxt,
                                         void* stream) {
  if (!padded || !layer->labels) return 0;
  const dim3 grid(cuda::blocks(layer->features, kWarps), cuda::blocks(padded, kBatch)), block(32, kWarps);
  XMC_LAUNCH(grad_features_kernel, grid, block, stream, *layer, gt, padded, starts, connections, gxt);
  return cudaGetLastError();
}

XMC_CUDA_API int xmc_fanin_grad_weights(const CudaLayer* layer, const void* x, int x_type, const void* g,
                                        int g_type, int64_t g_stride, int64_t batch, void* gw, int gw_type,
                                        void* gbias, int gbias_type, void* stream) {
  if (!layer->labels) return 0;
  const dim3 grid(cuda::blocks(layer->labels, kWarps)), block(32, kWarps);
  XMC_LAUNCH(grad_weights_kernel, grid, block, stream, *layer, x, x_type, g, g_type, g_stride, batch, gw,
             gw_type, gbias, gbias_type);
  return cudaGetLastError();
}

XMC_CUDA_API int xmc_fanin_grad_features_sparse(const CudaLayer* layer, int64_t batch, const int64_t* crow,
                                                const int32_t* col, const float* values, float* gx,
                                                void* stream) {
  if (!batch) return 0;
  const dim3 grid(static_cast<unsigned>(batch));
  XMC_LAUNCH(grad_features_sparse_kernel, grid, dim3(kThreads), stream, *layer, crow, col, values, gx);
  return cudaGetLastError();
}

XMC_CUDA_API int xmc_fanin_grad_weights_sparse(const CudaLayer* layer, const void* x, int x_type, int64_t n,
                                               const int64_t* labels, const int64_t* starts,
                                               const int64_t* rows, const float* values, float* gw,
                                               float* gbias, void* stream) {
  if (!n) return 0;
  const dim3 grid(static_cast<unsigned>(n));
  XMC_LAUNCH(grad_weights_sparse_kernel, grid, dim3(kThreads), stream, *layer, x, x_type, labels, starts,
             rows, values, gw, gbias);
  return cudaGetLastError();
}

}  // namespace xmc::fanin
