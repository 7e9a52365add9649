// Fixed fan-in on CUDA: the maths and layouts of fanin.h, as a C ABI over device pointers.
//
// Every function launches on the caller's stream, on the current device (the adapter xmc_fast/nn/_fanin_cuda.py
// guards it), does not wait, and returns the launch's cudaError_t. Work on part of the labels by passing a
// Layer whose pointers start there. Indices must be valid: the adapter checks them once per change.
//
// Deterministic by construction, no atomics: one thread owns each result and adds in a fixed order. The
// gradient for the features therefore walks lists of the connections of each feature ("by feature", built by
// the adapter with a stable sort whenever the connections change).
//
// The batch is the warp's dimension: x and g are used transposed, float32, [column][padded], `padded` being
// the batch rounded up to kBatch, with zeros.
#pragma once

#include <cstdint>

namespace xmc::fanin {

inline constexpr int kBatch = 64;  // batch rows of a thread block: 32 lanes of float2

struct CudaLayer {
  int64_t labels, features, fan_in, group;
  const void* indices;
  const void* weights;
  const void* bias;
  int32_t index_bits, weight_type, bias_type, reserved;
};

}  // namespace xmc::fanin
