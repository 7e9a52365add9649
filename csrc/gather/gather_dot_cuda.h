// gather_dot.h on CUDA, as a C ABI over device pointers: launched on the caller's stream and the current
// device, not waited for; returns the launch's cudaError_t. Candidates must be below labels (the adapter's
// caller sees to it: a wrong one would read outside E). Deterministic, no atomics: one thread owns each
// result. For gE the adapter sorts the candidates by label.
#pragma once

#include <cstdint>

namespace xmc::gather {

struct CudaGatherDot {
  int64_t batch, width, dims;
  const int64_t* candidates;   // batch x width, < 0: padding
  const void* h;               // batch x dims
  const void* table;           // labels x dims
  int32_t h_type, table_type;  // 0 float32, 1 bfloat16, 2 float16
};

}  // namespace xmc::gather
