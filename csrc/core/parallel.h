// The one way to use threads in this package.
//
// parallel_for(n, threads, fn) calls fn(block, thread) once for each block in [0, n), blocks handed out in
// increasing order to `threads` threads, the caller being thread 0. Results must depend on the block only,
// never on `thread` (a scratch-buffer slot), so that they are bit-equal for any number of threads.
//
// - An exception of fn reaches the caller: that of the lowest failing block. Other threads stop at their next
//   block boundary.
// - Ctrl-C: the caller's thread polls the interrupt hook (set by the bindings) between its blocks.
// - Fork-safe: threads live only during the call. Starting one costs about 20 us, so use one thread for less
//   work than that.
#pragma once

#include <cstdint>
#include <functional>

namespace xmc {

void parallel_for(int64_t blocks, int threads, const std::function<void(int64_t block, int thread)>& fn);

// Number of chunks of `chunk` items that cover n items.
inline int64_t chunk_count(int64_t n, int64_t chunk) {
  return (n + chunk - 1) / chunk;
}

// Calls fn(item, thread) once for each item in [0, n); a thread takes `chunk` neighbouring items at a time.
template <class Fn>
void parallel_items(int64_t n, int64_t chunk, int threads, Fn&& fn) {
  parallel_for(chunk_count(n, chunk), threads, [&](int64_t block, int thread) {
    const int64_t end = n < (block + 1) * chunk ? n : (block + 1) * chunk;
    for (int64_t item = block * chunk; item < end; ++item) fn(item, thread);
  });
}

// The hook throws to stop. It is called on the caller's thread only, at most every 50 ms.
void set_interrupt_hook(void (*hook)());
void check_interrupt();

// Threads a call uses when n_jobs is not given: OMP_NUM_THREADS if set, else the CPUs this process may run
// on; threadpoolctl changes it through set_default_threads.
int available_cpus();  // core/numa.cpp
int default_threads();
void set_default_threads(int threads);

}  // namespace xmc
