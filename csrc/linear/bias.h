// The bias's weight b in the dual solver (dual.h): where a label starts with it and how fast it follows.
//
// b couples all rows: in the dual it would be bias * sum_i alpha_i s_i, and one row's step would throw all
// others out. So b is a variable of its own, F(b) = min_w f(w, b), and moves as in the proximal point method:
// by the share 1 / (1 + mu) of what the dual suggests, within an epoch and again after it. The share is
// 1 / F'' of an average label, F'' = 1 + bias^2 n / (1 / (2 C) + n rho), rho = |mean row|^2. The multipliers
// lag behind b, and what they lack adds up in its part of the primal gradient; so b takes a Newton step of
// its own before that is checked (gradient in dual_kernels.h), and the rest of g must be smaller (kCentered).
#pragma once

#include <bit>
#include <cstdint>

#include "linear/prepare.h"
#include "linear/problem.h"

namespace xmc::linear {

inline double bias_share(const LinearProblem& problem, const PreparedFeatures& X) {
  const double b2 = static_cast<double>(X.bias) * X.bias, n = static_cast<double>(X.n);
  if (b2 == 0) return 0;
  const double rho = X.total_norm2 / (n * n) - b2;
  return 1 / (1 + b2 * n / (1 / (2 * problem.C) + n * (rho > 0 ? rho : 0)));
}

// The mean weight of labels solved before, by the bit width of their number of positives: on EURLex-4K -1.07
// with one or two positives, -1.33 with a hundred.
class BiasGuess {
 public:
  void clear() { *this = BiasGuess(); }
  void add(int64_t positives, double weight) {
    for (Mean* m : {&bucket(positives), &all_}) {
      m->sum += weight;
      ++m->count;
    }
  }
  double of(int64_t positives, double otherwise) {
    const Mean& m = bucket(positives).count ? bucket(positives) : all_;
    return m.count ? m.sum / static_cast<double>(m.count) : otherwise;
  }

 private:
  struct Mean {
    double sum = 0;
    int64_t count = 0;
  };
  Mean& bucket(int64_t positives) { return buckets_[std::bit_width(static_cast<uint64_t>(positives))]; }
  Mean buckets_[65];
  Mean all_;
};

}  // namespace xmc::linear
