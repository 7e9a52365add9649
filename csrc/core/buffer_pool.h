// Memory for large results, kept for the next one: training asks for the same sizes in every step. Filling
// 64 MiB of new memory took 7 ms and more on the machine of bench/speed/bench_fanin.py, most of it page faults, and
// 1.5 ms when the memory was there already.
#pragma once

#include <cstdint>

namespace xmc {

// Uninitialised, aligned to 2 MiB. Given back on destruction: at most kRecycled bytes stay with us, the
// oldest go first. A kept block serves requests down to 3/4 of its size. Thread-safe.
class Recycled {
 public:
  static constexpr int64_t kRecycled = int64_t{256} << 20;

  explicit Recycled(int64_t bytes);
  ~Recycled();
  Recycled(const Recycled&) = delete;
  Recycled& operator=(const Recycled&) = delete;
  void* data() const { return data_; }

 private:
  void* data_;
  int64_t bytes_;
};

// Bytes kept now; frees them if `release` is set.
int64_t recycled_bytes(bool release);

}  // namespace xmc
