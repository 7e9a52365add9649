// The k best (score, id) pairs, exact and in a fixed order: higher score first, then lower id. NaN ranks
// last.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace xmc {

struct Scored {
  float score;
  int32_t id;
};

// Strict order "a before b".
inline bool better(const Scored& a, const Scored& b) {
  const bool a_nan = a.score != a.score, b_nan = b.score != b.score;
  if (a_nan != b_nan) return b_nan;
  if (!a_nan && a.score != b.score) return a.score > b.score;
  return a.id < b.id;
}

// Keeps the k best of a stream of pairs. The worst kept pair is at the top of a heap, so that a pair that
// cannot enter costs one comparison with threshold().
class TopK {
 public:
  explicit TopK(int64_t k) : k_(static_cast<size_t>(k)) { heap_.reserve(k_); }

  void clear() { heap_.clear(); }
  size_t size() const { return heap_.size(); }
  bool full() const { return heap_.size() == k_; }
  // True while any score may enter: the list is not full, or its worst score is NaN.
  bool open() const { return !full() || (k_ > 0 && std::isnan(heap_.front().score)); }
  // A score below this cannot enter (equal ones may, by id).
  float threshold() const {
    return full() && k_ > 0 && !std::isnan(heap_.front().score) ? heap_.front().score
                                                                : -std::numeric_limits<float>::infinity();
  }

  void push(Scored s) {
    if (heap_.size() < k_) {
      heap_.push_back(s);
      std::push_heap(heap_.begin(), heap_.end(), better);
    } else if (k_ > 0 && better(s, heap_.front())) {
      std::pop_heap(heap_.begin(), heap_.end(), better);
      heap_.back() = s;
      std::push_heap(heap_.begin(), heap_.end(), better);
    }
  }

  // Best first. The object may be cleared and used again afterwards.
  const std::vector<Scored>& sorted() {
    std::sort_heap(heap_.begin(), heap_.end(), better);
    return heap_;
  }

 private:
  size_t k_;
  std::vector<Scored> heap_;
};

}  // namespace xmc
