// LIBLINEAR's stopping rule: the norm that a label's gradient must reach,
//   tol * max(min(#pos, #neg), 1) / n * |g(0)|,  g(0) = -|loss'(0)| C ((c+ + 1) p - T)
// with p the sum of the label's positive rows and T that of all rows.
#pragma once

#include <vector>

#include "linear/prepare.h"

namespace xmc::linear {

struct PositiveMoments {
  double pp = 0;  // p.p
  double pT = 0;  // p.T
};
// `work` (D zeros) is given back as zeros.
PositiveMoments positive_moments(const LinearProblem& problem, const PreparedFeatures& X, int64_t label,
                                 std::vector<double>& work);

// `slope` is |loss'(0)|: 2 for the squared hinge, 1/2 for the logistic loss.
double stopping_norm(const LinearProblem& problem, const PreparedFeatures& X, int64_t label,
                     const PositiveMoments& moments, double slope);

// |g| bounds |w - w*|, so |g| must also be at most this share of |w|.
double distance_limit(double tol);

// Where a label starts from an earlier solution, (f - min f) / min f is proven to be at most this instead: 8e-4 at
// the usual tol.
double certified_share(double tol);

}  // namespace xmc::linear
