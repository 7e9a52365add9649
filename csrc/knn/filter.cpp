#include "knn/filter.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/parallel.h"

namespace xmc::knn {
namespace {

constexpr double kUnit = 0x1p-24;          // rounding to float32, relative
constexpr double kTiny = 0x1p-149;         // and absolute, twice over
constexpr double kSafe = 1e37;             // nothing below it comes near the overflow of float32
constexpr int64_t kMaxFeatures = 1 << 18;  // beyond, I might need more than 32 bits
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

// Of the n terms of a sum in float32, in any order; twice the textbook's, to stay above it for every n.
double sum_error(int64_t n) {
  return 2 * static_cast<double>(n + 16) * kUnit;
}

float round_up(double x) {
  const auto y = static_cast<float>(x);
  return y < x ? std::nextafter(y, kInf) : y;
}

}  // namespace

KnnBytes::KnnBytes(DenseView<float> rows)
    : groups_(chunk_count(rows.cols, 4)),
      bytes_(chunk_count(rows.rows, kKnnPanel) * kKnnPanel * groups_ * 4),
      scale_(chunk_count(rows.rows, kKnnPanel) * kKnnPanel),
      norm_(scale_.size()),
      error_(scale_.size()) {
  const KnnFilterKernels& kernels = knn_filter_kernels();
  const int64_t c = rows.cols;
  std::vector<float> work(c);
  std::vector<uint8_t> row(groups_ * 4);
  for (int64_t i = 0; i < rows.rows; ++i) {
    float norm2, error2;
    const double s = scale_[i] = kernels.quantise(rows.row(i), c, work.data(), row.data(), &norm2, &error2);
    // z / s was rounded too: |z / s| < 96, so by less than 1e-5
    const double more = 1 + sum_error(c), apart = 1e-5 * std::sqrt(static_cast<double>(c));
    norm_[i] = round_up(s * (std::sqrt(norm2 * more) + apart));
    error_[i] = round_up(s * (std::sqrt(error2 * more) + apart));
    longest_ = norm_[i] < kInf ? std::max<double>(longest_, norm_[i]) : kInf;
    uint8_t* to = bytes_.data() + (i / kKnnPanel * groups_ * kKnnPanel + i % kKnnPanel) * 4;
    for (int64_t g = 0; g < groups_; ++g) std::copy_n(row.data() + g * 4, 4, to + g * kKnnPanel * 4);
  }
}

KnnQueries::KnnQueries(int64_t most, int64_t groups)
    : groups_(groups),
      a_(chunk_count(most, kKnnTile) * kKnnTile * groups * 4),
      factors_(chunk_count(most, kKnnTile) * kKnnTile, KnnFactors{0, 0, 0, 0}),
      scale_(factors_.size()),
      slack_(factors_.size()) {}

void KnnQueries::set(int64_t i, const float* query, int64_t c, double longest) {
  // A 16-bit lane sums 127 |a| at most, over the positive or the negative a of every second pair of a
  // segment.
  constexpr double kRounding = kKnnSegment / 2 * 0.5, kRoom = 32767 / 127 - kRounding;
  double norm2 = 0, peak = 0, fullest = 0;
  for (int64_t first = 0; first < c; first += kKnnSegment) {
    double lane[2][2] = {};
    for (int64_t j = first; j < std::min(c, first + kKnnSegment); ++j) {
      const double x = query[j];
      norm2 += x * x;
      peak = std::max(peak, std::abs(x));
      lane[j / 2 % 2][x < 0] += std::abs(x);
    }
    fullest = std::max({fullest, lane[0][0], lane[0][1], lane[1][0], lane[1][1]});
  }
  const double norm = std::sqrt(norm2), t = std::max(peak / 127, fullest / kRoom);
  // All products and sums of the score and of the bound stay finite.
  const bool safe = c <= kMaxFeatures && t > 0 && norm * longest < kSafe && norm / t * longest < kSafe;

  int64_t sum = 0, a2 = 0;
  double error2 = 0;
  int8_t* to = a_.data() + (i / kKnnTile * groups_ * kKnnTile + i % kKnnTile) * 4;
  for (int64_t j = 0; j < c; ++j) {
    const int64_t a = safe ? std::lround(query[j] / t) : 0;
    const double e = query[j] - t * static_cast<double>(a);
    sum += a;
    a2 += a * a;
    error2 += e * e;
    to[j / 4 * kKnnTile * 4 + j % 4] = static_cast<int8_t>(a);
  }
  // The bound takes three operations that round, s I being at most |a| (|z| + |e_z|).
  const double length = std::sqrt(static_cast<double>(a2));
  const double of_norm = (std::sqrt(error2) + sum_error(c) * norm) / t + 8 * kUnit * length;
  scale_[i] = safe ? t : 0;
  slack_[i] = 2 * static_cast<double>(c) * kTiny;
  factors_[i] = {static_cast<int32_t>(-64 * sum), static_cast<float>(of_norm * (1 + 8 * kUnit)),
                 static_cast<float>(length * (1 + 16 * kUnit)), static_cast<float>(kNaN)};
}

void KnnQueries::threshold(int64_t i, float score) {
  if (scale_[i] == 0) return;
  const double limit = (score - slack_[i]) / scale_[i] - 16 * kTiny;
  const float rounded = -round_up(-limit);
  if (!(factors_[i].limit >= rounded)) factors_[i].limit = rounded;
}

}  // namespace xmc::knn
