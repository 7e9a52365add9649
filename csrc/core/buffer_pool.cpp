#include "core/buffer_pool.h"

#include <cstdlib>
#include <mutex>
#include <new>
#include <vector>

#include "core/buffer.h"

#if defined(_WIN32)
#include <malloc.h>
#endif

namespace xmc {
namespace {

constexpr int64_t kPage = int64_t{2} << 20;

struct Block {
  void* data;
  int64_t bytes;
};

struct Shelf {
  std::mutex mutex;
  std::vector<Block> blocks;  // oldest first
  int64_t bytes = 0;
};

// Never destroyed: arrays may outlive every other object of the process.
Shelf& shelf() {
  static Shelf* const made = new Shelf;
  return *made;
}

void release(void* data) {
#if defined(_WIN32)
  _aligned_free(data);
#else
  std::free(data);
#endif
}

Block remove(Shelf& from, size_t i) {
  const Block block = from.blocks[i];
  from.blocks.erase(from.blocks.begin() + static_cast<std::ptrdiff_t>(i));
  from.bytes -= block.bytes;
  return block;
}

}  // namespace

Recycled::Recycled(int64_t bytes) : data_(nullptr), bytes_((bytes + kPage - 1) / kPage * kPage) {
  {
    Shelf& from = shelf();
    const std::lock_guard<std::mutex> lock(from.mutex);
    for (size_t i = 0; i < from.blocks.size(); ++i) {
      const int64_t kept = from.blocks[i].bytes;
      if (bytes_ > kept || bytes_ < kept / 4 * 3) continue;
      const Block block = remove(from, i);
      data_ = block.data;
      bytes_ = block.bytes;
      return;
    }
  }
#if defined(_WIN32)
  data_ = _aligned_malloc(bytes_, kPage);
#else
  data_ = std::aligned_alloc(kPage, bytes_);
#endif
  if (!data_) throw std::bad_alloc();
  advise_huge(data_, bytes_);
}

Recycled::~Recycled() {
  Shelf& to = shelf();
  const std::lock_guard<std::mutex> lock(to.mutex);
  to.blocks.push_back({data_, bytes_});
  to.bytes += bytes_;
  while (to.bytes > kRecycled) release(remove(to, 0).data);
}

int64_t recycled_bytes(bool release_all) {
  Shelf& from = shelf();
  const std::lock_guard<std::mutex> lock(from.mutex);
  while (release_all && !from.blocks.empty()) release(remove(from, 0).data);
  return from.bytes;
}

}  // namespace xmc
