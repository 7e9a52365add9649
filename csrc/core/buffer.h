// Owning, aligned, zeroed memory for hot arrays; large ones ask for huge pages where the system has them.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#if defined(_WIN32)
#include <malloc.h>
#endif

namespace xmc {

// Asks for huge pages for memory that somebody else allocated and nobody has touched yet: a large new array
// then costs one page fault per 2 MiB instead of per 4 KiB.
void advise_huge(void* data, int64_t bytes);  // core/numa.cpp, with the other calls to the system

// Gives pages that hold nothing but freed small pieces back to the system, where the C library can (glibc): it keeps
// them otherwise. Some milliseconds, and page faults when they are needed again.
void give_back_freed();

template <class T>
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(int64_t n) : size_(n) {
    if (n <= 0) return;
    const size_t bytes = static_cast<size_t>(n) * sizeof(T);
    const size_t align = bytes >= kHuge ? kHuge : 64;
    const size_t padded = (bytes + align - 1) / align * align;
#if defined(_WIN32)
    data_ = static_cast<T*>(_aligned_malloc(padded, align));
#else
    data_ = static_cast<T*>(std::aligned_alloc(align, padded));
#endif
    if (!data_) throw std::bad_alloc();
    if (align == kHuge) advise_huge(data_, static_cast<int64_t>(padded));
    std::memset(static_cast<void*>(data_), 0, padded);
  }
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    swap(other);
    return *this;
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() {
#if defined(_WIN32)
    _aligned_free(data_);
#else
    std::free(data_);
#endif
  }

  T* data() { return data_; }
  const T* data() const { return data_; }
  int64_t size() const { return size_; }
  T& operator[](int64_t i) { return data_[i]; }
  const T& operator[](int64_t i) const { return data_[i]; }

 private:
  static constexpr size_t kHuge = size_t{2} << 20;
  void swap(Buffer& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
  }
  T* data_ = nullptr;
  int64_t size_ = 0;
};

}  // namespace xmc
