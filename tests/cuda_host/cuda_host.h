// Runs CUDA kernel source on the CPU: g++ -x c++ -std=c++17 -DXMC_CUDA_HOST -include cuda_host.h -c
// kernels.cu
//
// The threads of a block are fibers of one OS thread; blocks run one after another. A fiber runs until it
// waits at __syncthreads() or ends, and the order of the fibers changes from round to round, so that a
// missing barrier gives a wrong result. A block in which some threads wait and the others have ended is an
// error (divergent barrier). With XMC_HOST_ASAN or XMC_HOST_TSAN the sanitizers know the fibers: a race
// between two CUDA threads is a race for TSan, with barriers as the only order between them.
//
// Not covered: races between blocks, warp shuffles, atomics, dynamic shared memory (csrc uses none of them).
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <vector_functions.h>
#include <vector_types.h>

#include <cmath>
#include <cstdint>
#include <functional>

#undef __global__
#undef __device__
#undef __shared__
#undef __launch_bounds__
#undef __forceinline__
#define __global__
#define __device__
#define __shared__ static  // one block at a time: a static is shared by its threads and by nobody else
#define __launch_bounds__(...)
#define __forceinline__ inline

namespace cuda_host {

struct Thread {
  uint3 index;
};
extern Thread* current;
extern uint3 block_index, block_size, grid_size;

void barrier();
int barrier_or(int vote);  // whether any thread of the block voted
void run(dim3 grid, dim3 block, const std::function<void()>& body);

}  // namespace cuda_host

#define threadIdx (cuda_host::current->index)
#define blockIdx cuda_host::block_index
#define blockDim cuda_host::block_size
#define gridDim cuda_host::grid_size
inline void __syncthreads() {
  cuda_host::barrier();
}
inline int __syncthreads_or(int vote) {
  return cuda_host::barrier_or(vote);
}
#define cudaGetLastError() 0  // an impossible launch ends the program
#define XMC_LAUNCH(kernel, grid, block, stream, ...) \
  ((void)(stream), cuda_host::run(grid, block, [=] { kernel(__VA_ARGS__); }))
