#include "mach/aggregate.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <deque>
#include <limits>
#include <stdexcept>
#include <vector>

#include "core/buffer.h"
#include "core/buffer_pool.h"
#include "core/parallel.h"
#include "core/topk.h"
#include "mach/bounds.h"

namespace xmc::mach {
namespace {

constexpr int kMaxLanes = 64;
constexpr int64_t kBlock = 1 << 20;    // labels whose sums are kept: 64 MiB
constexpr int64_t kScan = 1 << 12;     // labels whose sums are finished and scanned at a time: 256 KiB
constexpr int64_t kSample = 1024;      // labels that the first thresholds come from
constexpr int64_t kPrime = 1 << 16;    // labels whose bounds the next thresholds come from
constexpr int64_t kChunk = 4096;       // buckets rounded at a time
constexpr int64_t kRow = kChunk + 64;  // not a power of two: 16 rows would share a set of the cache
constexpr int64_t kCache = 11 << 18;   // as many repetitions at once as have tables that fit: 2.75 MiB
constexpr double kScale = 250;         // the sum that decides
constexpr double kShift = 0.25;        // gains below this many steps count as none
constexpr double kLargest = 1e36;

// The instances of a tile: their rounded outputs, the rounding, their best so far.
class Tile {
 public:
  Tile(const MachScores& in, int lanes)
      : in_(in),
        kernels_(bound_kernels()),
        lanes_(lanes),
        stride_((in.buckets + 15) / 16 * 16 * lanes),
        group_(static_cast<int>(std::clamp<int64_t>(kCache / stride_, 1, kMaxGroup))),
        q_(group_ * stride_),
        sums_(in.repeats > group_ ? std::min(kBlock, in.labels) * lanes : 1),
        bounds_(kScan * lanes),
        rows_(kMaxLanes * kRow),
        hits_(kScan),
        which_(kScan),
        sample_(in.repeats * kSample),
        values_(in.repeats),
        order_(in.repeats) {}

  void run(int64_t first, int64_t k, int32_t* ids, float* scores) {
    first_ = first;
    size_ = static_cast<int>(std::min<int64_t>(lanes_, in_.rows - first));
    best_.assign(size_, TopK(k));
    std::fill_n(lane_, kMaxLanes, Lane());
    std::fill_n(flip_, kMaxLanes, uint8_t{0});
    std::fill_n(limit_, kMaxLanes, uint8_t{255});
    low_.assign(in_.repeats * lanes_, 0.f);
    high_ = low_;
    for (int i = 0; i < size_; ++i) survey(i, k);
    for (int64_t label = 0; label < in_.labels; label += kBlock) {
      const int64_t n = std::min(kBlock, in_.labels - label);
      const MergeArgs last = sum_block(label, n);
      if (label == 0) prime(last, std::min(kPrime, n), k);
      each_hit(last, n, [&](int64_t l, int i, uint8_t) { visit(i, label + l); });
    }
    for (int i = 0; i < size_; ++i) {
      const auto& sorted = best_[i].sorted();
      for (int64_t j = 0; j < k; ++j) {
        ids[(first_ + i) * k + j] = sorted[j].id;
        scores[(first_ + i) * k + j] = sorted[j].score;
      }
    }
  }

 private:
  struct Lane {
    float threshold = -std::numeric_limits<float>::infinity();  // the k-th best score is not below
    float guess = std::numeric_limits<float>::infinity();       // of the k-th best score of all labels
    double sum_low = 0, sum_high = 0, least = 0, most = 0;      // of the lo_r and hi_r
    double error = 0;                                           // of float sums, in units of the score's sum
    double step = 1;
  };

  const float* row(int64_t r, int i) const { return in_.p + (r * in_.rows + first_ + i) * in_.buckets; }

  // Extremes of each repetition, and a threshold from a sample of labels.
  void survey(int i, int64_t k) {
    const int64_t n = std::min(kSample, in_.labels), R = in_.repeats;
    Lane& lane = lane_[i];
    lane.least = std::numeric_limits<double>::infinity();
    lane.most = -lane.least;
    double size = 0;
    for (int64_t r = 0; r < R; ++r) {
      float low, high;
      if (!kernels_.extremes(row(r, i), in_.buckets, &low, &high) || low < -kLargest || high > kLargest) {
        throw std::invalid_argument("the models' outputs must be finite and at most 1e36 in absolute value");
      }
      low_[r * lanes_ + i] = low;
      high_[r * lanes_ + i] = high;
      lane.sum_low += low;
      lane.sum_high += high;
      lane.least = std::min<double>(lane.least, low);
      lane.most = std::max<double>(lane.most, high);
      size += std::max(std::abs(low), std::abs(high));
      float* values = sample_.data() + (in_.aggregate == Aggregate::mean ? std::min<int64_t>(r, 1) : r) * n;
      kernels_.gather(row(r, i), in_.table + r * in_.labels, n, values);
      if (values != sample_.data() && in_.aggregate == Aggregate::mean) {
        for (int64_t s = 0; s < n; ++s) sample_[s] += values[s];
      }
    }
    lane.error = size * static_cast<double>(R + 4) * std::ldexp(1., -23);
    if (n < k) return;
    TopK best(k), more(std::min(8 * k, n));
    for (int64_t s = 0; s < n; ++s) {
      const float* v = sample_.data() + s;
      const float score = in_.aggregate == Aggregate::mean
                              ? *v / static_cast<float>(R)
                              : aggregate_of(in_.aggregate, v, R, n, order_.data());
      const Scored scored{score, static_cast<int32_t>(s)};
      best.push(scored);
      more.push(scored);
    }
    lane.threshold = best.threshold();
    // The tail goes on as it fell from the 8k-th to the k-th best: so much more per e-fold of labels.
    const double slope = (static_cast<double>(lane.threshold) - more.threshold()) / std::log(8.);
    lane.guess =
        static_cast<float>(slope * std::log(static_cast<double>(in_.labels) / static_cast<double>(n)));
    lane.guess += lane.threshold;
  }

  // How the outputs of an instance become bytes: (x - zero_r) * scale + add in [0, most].
  struct Rule {
    float scale, add, most;
  };

  Rule choose(int i) {
    Lane& lane = lane_[i];
    const double R = static_cast<double>(in_.repeats);
    flip_[i] = 0;
    double range = std::min<double>(lane.most, lane.guess) - lane.least;  // beyond it all are alike
    if (in_.aggregate == Aggregate::mean) {
      const double gain = lane.guess * R - lane.sum_low, deficit = lane.sum_high - lane.threshold * R;
      flip_[i] = gain > deficit ? 255 : 0;
      range = std::isfinite(deficit) ? std::min(gain, deficit) : (lane.sum_high - lane.sum_low) / 2;
      if (!flip_[i]) range *= kScale / (kScale + kShift * R);
    }
    lane.step = std::max({range / kScale, 4 * lane.error, 1e-36});
    set_limit(i);
    const auto scale = static_cast<float>(1 / lane.step);
    if (in_.aggregate == Aggregate::median) return {1e36f, 1, 1};
    if (flip_[i]) return {-scale, 0, 255};
    const bool sum = in_.aggregate == Aggregate::mean;
    return {scale, sum ? static_cast<float>(0.999 - kShift) : 0.999f, 255};
  }

  float zero(int64_t r, int i) const {
    switch (in_.aggregate) {
      case Aggregate::mean:
        return flip_[i] ? high_[r * lanes_ + i] : low_[r * lanes_ + i];
      case Aggregate::min:
        return static_cast<float>(lane_[i].least);
      default: {  // the mean of the middle two rounds
        const float t = lane_[i].threshold;
        return std::max(t - std::abs(t) * std::ldexp(1.f, -22), static_cast<float>(-kLargest));
      }
    }
  }

  // Outputs of some repetitions to bytes [repetition][bucket][instance].
  void round(const Rule* rule, int64_t r, int64_t count) {
    for (int64_t j = 0; j < count; ++j) {
      for (int64_t b = 0; b < in_.buckets; b += kChunk) {
        const int64_t n = std::min(kChunk, in_.buckets - b);
        for (int i = 0; i < size_; ++i) {
          kernels_.round(row(r + j, i) + b, n, zero(r + j, i), rule[i].scale, rule[i].add, rule[i].most,
                         rows_.data() + i * kRow);
        }
        kernels_.interleave(rows_.data(), kRow, lanes_, n, q_.data() + j * stride_ + b * lanes_);
      }
    }
  }

  // The least bound (after flip_) of a label whose score is at least the lane's threshold. Rounding may be
  // off by 0.0015 per repetition.
  void set_limit(int i) {
    const Lane& lane = lane_[i];
    const double R = static_cast<double>(in_.repeats), sum = lane.threshold * R;
    double limit;
    if (in_.aggregate == Aggregate::median) {
      limit = static_cast<double>((in_.repeats + 1) / 2);
    } else if (in_.aggregate == Aggregate::min) {
      limit = (lane.threshold - lane.least) / lane.step - 1;
    } else if (flip_[i]) {
      limit = 255 - ((lane.sum_high - sum + lane.error) / lane.step + 1 + 0.002 * R);
      if (limit <= 0) limit = 0;
    } else {
      limit = (sum - lane.sum_low - lane.error) / lane.step - 1 - (kShift + 0.002) * R;
    }
    limit_[i] = static_cast<uint8_t>(std::clamp(std::floor(limit), 0., 255.));
  }

  // Sums of n labels from `label` on over all repetitions but the last few; returns what is left to do, which
  // goes to bounds_ piece by piece.
  MergeArgs sum_block(int64_t label, int64_t n) {
    Rule rule[kMaxLanes];
    for (int i = 0; i < size_; ++i) rule[i] = choose(i);
    MergeArgs a{};
    a.q = q_.data();
    a.q_stride = stride_;
    a.h_stride = in_.labels;
    a.n = n;
    a.lanes = lanes_;
    a.least = in_.aggregate == Aggregate::min;
    a.out = static_cast<uint8_t*>(sums_.data());
    for (int64_t r = 0;; r += group_) {
      a.group = static_cast<int>(std::min<int64_t>(group_, in_.repeats - r));
      a.h = in_.table + r * in_.labels + label;
      round(rule, r, a.group);
      if (r + group_ >= in_.repeats) break;
      kernels_.merge(a);
      a.sums = a.out;
    }
    a.out = bounds_.data();
    return a;
  }

  // Finishes the sums of n labels piece by piece and calls visit(label, instance, bound) for those that may
  // reach the instance's threshold.
  template <class Visit>
  void each_hit(MergeArgs last, int64_t n, const Visit& visit) {
    const uint64_t present = ~uint64_t{0} >> (64 - size_);
    for (int64_t first = 0; first < n; first += kScan) {
      last.n = std::min(kScan, n - first);
      kernels_.merge(last);
      const int64_t hits =
          kernels_.scan(bounds_.data(), last.n, lanes_, flip_, limit_, hits_.data(), which_.data());
      for (int64_t h = 0; h < hits; ++h) {
        const int64_t l = hits_[h];
        for (uint64_t mask = which_[h] & present; mask; mask &= mask - 1) {
          const int i = std::countr_zero(mask);
          const uint8_t bound = bounds_[l * lanes_ + i] ^ flip_[i];
          if (bound >= limit_[i]) visit(first + l, i, bound);  // the limit may have grown since the scan
        }
      }
      last.h += kScan;
      if (last.sums) last.sums += kScan * lanes_;
    }
  }

  void visit(int i, int64_t label) {
    TopK& best = best_[i];
    best.push({score_of(in_, first_ + i, label, values_.data(), order_.data()), static_cast<int32_t>(label)});
    raise(i, best.threshold());
  }

  void raise(int i, float threshold) {
    if (!(threshold > lane_[i].threshold)) return;
    lane_[i].threshold = threshold;
    set_limit(i);
  }

  // Thresholds from the labels with the best bounds among the first n.
  void prime(const MergeArgs& last, int64_t n, int64_t k) {
    if (n < k) return;
    std::vector<TopK> best(size_, TopK(k));
    each_hit(last, n, [&](int64_t l, int i, uint8_t bound) {
      best[i].push({static_cast<float>(bound), static_cast<int32_t>(l)});
      if (best[i].full()) limit_[i] = static_cast<uint8_t>(best[i].threshold());
    });
    for (int i = 0; i < size_; ++i) {
      set_limit(i);
      if (!best[i].full()) continue;
      TopK exact(k);
      for (const Scored& s : best[i].sorted()) {
        exact.push({score_of(in_, first_ + i, s.id, values_.data(), order_.data()), s.id});
      }
      raise(i, exact.threshold());
    }
  }

  const MachScores& in_;
  const BoundKernels& kernels_;
  const int lanes_;
  const int64_t stride_;
  const int group_;
  int64_t first_ = 0;
  int size_ = 0;
  Buffer<uint8_t> q_;
  Recycled sums_;
  Buffer<uint8_t> bounds_, rows_;
  std::vector<int32_t> hits_;
  std::vector<uint64_t> which_;
  std::vector<float> sample_, values_, order_, low_, high_;
  Lane lane_[kMaxLanes];
  uint8_t flip_[kMaxLanes] = {}, limit_[kMaxLanes] = {};
  std::vector<TopK> best_;
};

}  // namespace

float aggregate_of(Aggregate aggregate, const float* v, int64_t repeats, int64_t stride, float* order) {
  if (aggregate == Aggregate::min) {
    float least = v[0];
    for (int64_t r = 1; r < repeats; ++r) least = std::min(least, v[r * stride]);
    return least;
  }
  if (aggregate == Aggregate::mean) {
    float sum = 0;
    for (int64_t r = 0; r < repeats; ++r) sum += v[r * stride];
    return sum / static_cast<float>(repeats);
  }
  for (int64_t r = 0; r < repeats; ++r) order[r] = v[r * stride];
  float* middle = order + repeats / 2;
  std::nth_element(order, middle, order + repeats);
  if (repeats % 2) return *middle;
  return 0.5f * (*std::max_element(order, middle) + *middle);
}

float score_of(const MachScores& in, int64_t row, int64_t label, float* values, float* order) {
  for (int64_t r = 0; r < in.repeats; ++r) {
    values[r] = in.p[(r * in.rows + row) * in.buckets + in.table[r * in.labels + label]];
  }
  return aggregate_of(in.aggregate, values, in.repeats, 1, order);
}

void check_topk(const MachScores& in, int64_t k) {
  if (in.repeats < 1 || in.repeats > 256) throw std::invalid_argument("repeats must be in 1..256");
  if (k < 1 || k > in.labels) throw std::invalid_argument("k must be in 1..labels");
}

void mach_topk(const MachScores& in, int64_t k, int threads, int32_t* ids, float* scores) {
  check_topk(in, k);
  threads = std::max(threads, 1);
  const int lanes = in.rows > 16 * threads ? kMaxLanes : 16;  // any width gives the same result
  const int64_t tiles = chunk_count(in.rows, lanes);
  threads = static_cast<int>(std::min<int64_t>(threads, std::max<int64_t>(tiles, 1)));
  std::deque<Tile> scratch;
  for (int t = 0; t < threads; ++t) scratch.emplace_back(in, lanes);
  parallel_for(tiles, threads,
               [&](int64_t tile, int thread) { scratch[thread].run(tile * lanes, k, ids, scores); });
}

}  // namespace xmc::mach
