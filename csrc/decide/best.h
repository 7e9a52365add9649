// The k largest gains of a short row, kept in order. Equal gains: the one pushed first stays ahead.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace xmc {

class BestGains {
 public:
  explicit BestGains(int64_t k) : gain_(static_cast<size_t>(k)), at_(static_cast<size_t>(k)) { clear(); }

  void clear() {
    size_ = 0;
    threshold_ = -std::numeric_limits<double>::infinity();
  }
  // Only a gain above this may be pushed.
  double threshold() const { return threshold_; }
  void push(double gain, int32_t at) {
    size_t slot = size_ < gain_.size() ? size_++ : size_ - 1;
    for (; slot > 0 && gain_[slot - 1] < gain; --slot) {
      gain_[slot] = gain_[slot - 1];
      at_[slot] = at_[slot - 1];
    }
    gain_[slot] = gain;
    at_[slot] = at;
    if (size_ == gain_.size()) threshold_ = gain_[size_ - 1];
  }
  double gain(int64_t slot) const { return gain_[static_cast<size_t>(slot)]; }
  int32_t at(int64_t slot) const { return at_[static_cast<size_t>(slot)]; }
  const int32_t* positions() const { return at_.data(); }

 private:
  size_t size_;
  double threshold_;
  std::vector<double> gain_;
  std::vector<int32_t> at_;
};

}  // namespace xmc
