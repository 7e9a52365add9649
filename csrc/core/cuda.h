// What .cu files share: storage types chosen at run time, launches, the C ABI's error code.
//
// The same source compiles with nvcc and, for tests on machines without a GPU, with a host compiler
// (-DXMC_CUDA_HOST -include cuda_host.h, see tests/cuda_host): launches go through XMC_LAUNCH, shared memory
// is static, and block-wide barriers are the only synchronisation.
#pragma once

#if !defined(XMC_CUDA_HOST)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#define XMC_LAUNCH(kernel, grid, block, stream, ...) \
  kernel<<<grid, block, 0, static_cast<cudaStream_t>(stream)>>>(__VA_ARGS__)
#endif

#include <cstdint>

#if defined(_WIN32)
#define XMC_CUDA_API extern "C" __declspec(dllexport)
#else
#define XMC_CUDA_API extern "C" __attribute__((visibility("default")))
#endif

namespace xmc::cuda {

// 0 float32, 1 bfloat16, 2 float16; the branch is the same for a whole launch.
__device__ __forceinline__ float load(const void* data, int type, int64_t i) {
  if (type == 0) return static_cast<const float*>(data)[i];
  if (type == 1) return __bfloat162float(static_cast<const __nv_bfloat16*>(data)[i]);
  return __half2float(static_cast<const __half*>(data)[i]);
}

__device__ __forceinline__ void store(void* data, int type, int64_t i, float value) {
  if (type == 0) {
    static_cast<float*>(data)[i] = value;
  } else if (type == 1) {
    static_cast<__nv_bfloat16*>(data)[i] = __float2bfloat16(value);
  } else {
    static_cast<__half*>(data)[i] = __float2half(value);
  }
}

inline unsigned blocks(int64_t n, int64_t size) {
  return static_cast<unsigned>((n + size - 1) / size);
}

}  // namespace xmc::cuda
