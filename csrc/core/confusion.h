// Every metric of one label's confusion matrix, defined once: its value and its gradient.
//
//   t  true positives, q  predicted positives, p  positives, n  instances        (thesis, section 4.3)
//
// t may be an expectation (sum of probabilities). Entries of the 2 x 2 matrix, first index the truth:
// C11 = t, C01 = q - t (false positive), C10 = p - t (false negative), C00 = n - p - q + t. p and n do not
// depend on the prediction, so the gradient has two parts, and the best response to a linearised metric is
// the top-k of eta * dt + dq (equation 4.22: dt = G11 + G00 - G01 - G10, dq = G01 - G00).
// 0/0 = 0: a label that is never predicted has precision 0, one without positives has recall 0.
//
// `affine`: affine in t at fixed q, so that a gain is A + B * eta with A, B kept per label.
// `linear`: affine in (t, q): solved by one weighted top-k.
#pragma once

#include <cmath>

namespace xmc {

inline double ratio(double numerator, double denominator) {
  return denominator > 0 ? numerator / denominator : 0.0;
}

struct Gradient {
  double dt, dq;
};

// Instance-wise precision is sum_j t_j / (n k): its scale is in the weight of the term.
struct TruePositives {
  static constexpr bool affine = true, linear = true;
  double value(double t, double, double, double) const { return t; }
  Gradient gradient(double, double, double, double) const { return {1, 0}; }
};

struct Precision {
  static constexpr bool affine = true, linear = false;
  double value(double t, double q, double, double) const { return ratio(t, q); }
  Gradient gradient(double t, double q, double, double) const { return {ratio(1, q), -ratio(t, q * q)}; }
};

struct Recall {
  static constexpr bool affine = true, linear = true;
  double value(double t, double, double p, double) const { return ratio(t, p); }
  Gradient gradient(double, double, double p, double) const { return {ratio(1, p), 0}; }
};

// (1 + b^2) t / (b^2 p + q)
struct FBeta {
  static constexpr bool affine = true, linear = false;
  double beta2;
  double value(double t, double q, double p, double) const { return ratio((1 + beta2) * t, beta2 * p + q); }
  Gradient gradient(double t, double q, double p, double) const {
    const double d = beta2 * p + q;
    return {ratio(1 + beta2, d), -ratio((1 + beta2) * t, d * d)};
  }
};

// t / (p + q - t)
struct Jaccard {
  static constexpr bool affine = false, linear = false;
  double value(double t, double q, double p, double) const { return ratio(t, p + q - t); }
  Gradient gradient(double t, double q, double p, double) const {
    const double d = p + q - t;
    return {ratio(p + q, d * d), -ratio(t, d * d)};
  }
};

inline double true_negative_rate(double t, double q, double p, double n) {
  return ratio(n - p - q + t, n - p);
}

// (t/p + C00 / (n - p)) / 2
struct BalancedAccuracy {
  static constexpr bool affine = true, linear = true;
  double value(double t, double q, double p, double n) const {
    return 0.5 * (ratio(t, p) + true_negative_rate(t, q, p, n));
  }
  Gradient gradient(double, double, double p, double n) const {
    const double negative = 0.5 * ratio(1, n - p);
    return {0.5 * ratio(1, p) + negative, -negative};
  }
};

// sqrt(t/p * C00 / (n - p)). The slope at 0 is infinite: the gradient is taken where the product is 1e-6.
struct GMean {
  static constexpr bool affine = false, linear = false;
  double value(double t, double q, double p, double n) const {
    const double product = ratio(t, p) * true_negative_rate(t, q, p, n);
    return product > 0 ? std::sqrt(product) : 0.0;
  }
  Gradient gradient(double t, double q, double p, double n) const {
    const double tpr = ratio(t, p), tnr = true_negative_rate(t, q, p, n), negative = ratio(1, n - p);
    const double product = tpr * tnr;
    const double slope = 0.5 / std::sqrt(product > 1e-6 ? product : 1e-6);
    return {slope * (ratio(tnr, p) + tpr * negative), -slope * tpr * negative};
  }
};

// Harmonic mean of t/p and C00 / (n - p).
struct HMean {
  static constexpr bool affine = false, linear = false;
  double value(double t, double q, double p, double n) const {
    const double tpr = ratio(t, p), tnr = true_negative_rate(t, q, p, n);
    return ratio(2 * tpr * tnr, tpr + tnr);
  }
  Gradient gradient(double t, double q, double p, double n) const {
    const double tpr = ratio(t, p), tnr = true_negative_rate(t, q, p, n), negative = ratio(1, n - p);
    const double s = (tpr + tnr) * (tpr + tnr);
    const double d_tpr = ratio(2 * tnr * tnr, s), d_tnr = ratio(2 * tpr * tpr, s);
    return {d_tpr * ratio(1, p) + d_tnr * negative, -d_tnr * negative};
  }
};

// Chance that a label is hit at least once. On a fixed test set it is 1 - prod (1 - eta) over the instances
// that predict it, which block coordinate ascent tracks (decide/bca.h). As a function of the confusion matrix:
// hits are rare and independent, so Poisson, 1 - exp(-t).
struct Coverage {
  static constexpr bool affine = false, linear = false;
  double value(double t, double, double, double) const { return -std::expm1(-t); }
  Gradient gradient(double t, double, double, double) const { return {std::exp(-t), 0}; }
};

}  // namespace xmc
