#include "mach/aggregate.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <vector>

#include "core/buffer.h"
#include "core/parallel.h"
#include "core/topk.h"

namespace xmc {
namespace {

constexpr int64_t kTile = 16;        // instances side by side
constexpr int64_t kBlock = 1 << 14;  // labels per block: 512 KiB of sums
constexpr int64_t kPrime = 4096;     // labels that the first thresholds come from

size_t at(int64_t i) {
  return static_cast<size_t>(i);
}

float aggregate_of(const MachScores& in, int64_t row, int64_t label, std::vector<float>& scratch) {
  const auto value = [&](int64_t r) {
    return in.p[(r * in.rows + row) * in.buckets + in.table[r * in.labels + label]];
  };
  if (in.aggregate == Aggregate::min) {
    float least = value(0);
    for (int64_t r = 1; r < in.repeats; ++r) least = std::min(least, value(r));
    return least;
  }
  if (in.aggregate == Aggregate::mean) {
    float sum = 0;
    for (int64_t r = 0; r < in.repeats; ++r) sum += value(r);
    return sum / static_cast<float>(in.repeats);
  }
  scratch.resize(at(in.repeats));
  for (int64_t r = 0; r < in.repeats; ++r) scratch[at(r)] = value(r);
  const auto middle = scratch.begin() + in.repeats / 2;
  std::nth_element(scratch.begin(), middle, scratch.end());
  if (in.repeats % 2) return *middle;
  return 0.5f * (*std::max_element(scratch.begin(), middle) + *middle);
}

// out[b][i] = in[i][b] for an 8 x 8 block of bytes: rows `from` apart in, `to` apart out.
void transpose8(const uint8_t* in, int64_t from, uint8_t* out, int64_t to) {
  uint64_t x[8];
  for (int i = 0; i < 8; ++i) std::memcpy(&x[i], in + i * from, 8);
  const auto swap = [&](int i, int j, int shift, uint64_t mask) {
    const uint64_t t = ((x[i] >> shift) ^ x[j]) & mask;
    x[j] ^= t;
    x[i] ^= t << shift;
  };
  for (int i = 0; i < 4; ++i) swap(i, i + 4, 32, 0x00000000FFFFFFFFull);
  for (const int i : {0, 1, 4, 5}) swap(i, i + 2, 16, 0x0000FFFF0000FFFFull);
  for (const int i : {0, 2, 4, 6}) swap(i, i + 1, 8, 0x00FF00FF00FF00FFull);
  for (int i = 0; i < 8; ++i) std::memcpy(out + i * to, &x[i], 8);
}

// Sixteen instances: their rounded outputs, the map from scores to 16-bit sums, their best so far.
class Tile {
 public:
  explicit Tile(const MachScores& in)
      : in_(in),
        kernels_(aggregate_kernels()),
        q_(in.repeats * in.buckets * kTile),
        sums_(kBlock * kTile),
        hits_(at(kBlock)) {}

  void run(int64_t first, int64_t k, int32_t* ids, float* scores) {
    first_ = first;
    size_ = std::min(kTile, in_.rows - first);
    load();
    best_.assign(at(size_), TopK(k));
    std::fill_n(threshold_, kTile, uint16_t{65535});
    for (int64_t label = 0; label < in_.labels; label += kBlock) {
      const int64_t n = std::min(kBlock, in_.labels - label);
      sum_block(label, n);
      if (label == 0) prime(std::min(n, kPrime), k);
      const int64_t hits = kernels_.scan(sums_.data(), n, threshold_, hits_.data());
      for (int64_t h = 0; h < hits; ++h) {
        const int64_t l = hits_[at(h)];
        for (int64_t i = 0; i < size_; ++i) {
          if (sums_[l * kTile + i] < threshold_[i]) continue;
          TopK& best = best_[at(i)];
          best.push({aggregate_of(in_, first_ + i, label + l, scratch_), static_cast<int32_t>(label + l)});
          if (best.full()) threshold_[i] = std::max(threshold_[i], bound(i, best.threshold()));
        }
      }
    }
    for (int64_t i = 0; i < size_; ++i) {
      const auto& sorted = best_[at(i)].sorted();
      for (int64_t j = 0; j < k; ++j) {
        ids[(first_ + i) * k + j] = sorted[at(j)].id;
        scores[(first_ + i) * k + j] = sorted[at(j)].score;
      }
    }
  }

 private:
  // Outputs to bytes [r][bucket][instance].
  void load() {
    const int64_t B = in_.buckets, R = in_.repeats;
    low_.assign(at(R * kTile), 0.f);
    for (int64_t i = 0; i < size_; ++i) {
      float range = 0, least = std::numeric_limits<float>::infinity(), most = -least;
      for (int64_t r = 0; r < R; ++r) {
        float low, high;
        if (!kernels_.extremes(in_.p + (r * in_.rows + first_ + i) * B, B, &low, &high)) {
          throw std::invalid_argument("the models' outputs must be finite");
        }
        low_[at(r * kTile + i)] = low;
        range = std::max(range, high - low);
        least = std::min(least, low);
        most = std::max(most, high);
      }
      if (in_.aggregate != Aggregate::mean) {  // one zero for all repetitions
        for (int64_t r = 0; r < R; ++r) low_[at(r * kTile + i)] = least;
        range = most - least;
      }
      step_[i] = range > 0 ? static_cast<double>(range) / 254 : 1;
      zero_[i] = 0;
      for (int64_t r = 0; r < R; ++r) zero_[i] += low_[at(r * kTile + i)];
    }
    constexpr int64_t kChunk = 1024;
    uint8_t rows[kTile * kChunk];
    std::memset(rows, 0, sizeof rows);
    for (int64_t r = 0; r < R; ++r) {
      uint8_t* q = q_.data() + r * B * kTile;
      for (int64_t b = 0; b < B; b += kChunk) {
        const int64_t n = std::min(kChunk, B - b);
        for (int64_t i = 0; i < size_; ++i) {
          kernels_.round_up(in_.p + (r * in_.rows + first_ + i) * B + b, n, low_[at(r * kTile + i)],
                            static_cast<float>(1 / step_[i]), rows + i * kChunk);
        }
        int64_t j = 0;
        for (; j + 8 <= n; j += 8) {
          transpose8(rows + j, kChunk, q + (b + j) * kTile, kTile);
          transpose8(rows + 8 * kChunk + j, kChunk, q + (b + j) * kTile + 8, kTile);
        }
        for (; j < n; ++j) {
          for (int64_t i = 0; i < kTile; ++i) q[(b + j) * kTile + i] = rows[i * kChunk + j];
        }
      }
    }
  }

  void sum_block(int64_t label, int64_t n) {
    const bool least = in_.aggregate == Aggregate::min;
    const auto four = least ? kernels_.min_four : kernels_.add_four;
    const auto one = least ? kernels_.min_one : kernels_.add_one;
    const int64_t stride = in_.buckets * kTile;
    const uint16_t* h = in_.table + label;
    int64_t r = 0;
    for (; r + 4 <= in_.repeats; r += 4) {
      four(q_.data() + r * stride, stride, h + r * in_.labels, in_.labels, n, r == 0, sums_.data());
    }
    for (; r < in_.repeats; ++r) one(q_.data() + r * stride, h + r * in_.labels, n, r == 0, sums_.data());
  }

  // The least sum that a label of at least this score can have; 2 less for the rounding of all of this.
  uint16_t bound(int64_t i, float score) const {
    const auto R = static_cast<double>(in_.repeats);
    double least;
    switch (in_.aggregate) {
      case Aggregate::mean:
        least = (score * R - zero_[i]) / step_[i];
        break;
      case Aggregate::min:
        least = (score - zero_[i] / R) / step_[i];
        break;
      default:
        least = (score - zero_[i] / R) / step_[i] * static_cast<double>(in_.repeats / 2 + 1);
        break;
    }
    // round_up may be 0.001 short per repetition; float sums of the scores round, too: allow 1e-5 of the
    // range.
    least -= 2 + R * 0.01;
    return static_cast<uint16_t>(std::clamp(std::floor(least), 0., 65535.));
  }

  // First thresholds: the k-th best score of the labels with the best sums among the first n.
  void prime(int64_t n, int64_t k) {
    for (int64_t i = 0; i < size_; ++i) {
      threshold_[i] = 0;
      if (n < k) continue;
      TopK best(k);
      for (int64_t l = 0; l < n; ++l) {
        best.push({static_cast<float>(sums_[l * kTile + i]), static_cast<int32_t>(l)});
      }
      float least = std::numeric_limits<float>::infinity();
      for (const Scored& s : best.sorted())
        least = std::min(least, aggregate_of(in_, first_ + i, s.id, scratch_));
      threshold_[i] = bound(i, least);
    }
  }

  const MachScores& in_;
  const AggregateKernels& kernels_;
  int64_t first_ = 0, size_ = 0;
  Buffer<uint8_t> q_;
  Buffer<uint16_t> sums_;
  std::vector<int32_t> hits_;
  std::vector<float> low_, scratch_;
  double step_[kTile] = {}, zero_[kTile] = {};
  uint16_t threshold_[kTile] = {};
  std::vector<TopK> best_;
};

void check(const MachScores& in, int64_t k) {
  if (in.repeats < 1 || in.repeats > 256) throw std::invalid_argument("repeats must be in 1..256");
  if (k < 1 || k > in.labels) throw std::invalid_argument("k must be in 1..labels");
}

}  // namespace

void mach_topk(const MachScores& in, int64_t k, int threads, int32_t* ids, float* scores) {
  check(in, k);
  const int64_t tiles = chunk_count(in.rows, kTile);
  threads = static_cast<int>(std::min<int64_t>(std::max(threads, 1), std::max<int64_t>(tiles, 1)));
  std::vector<Tile> scratch;
  scratch.reserve(at(threads));
  for (int t = 0; t < threads; ++t) scratch.emplace_back(in);
  parallel_for(tiles, threads,
               [&](int64_t tile, int thread) { scratch[at(thread)].run(tile * kTile, k, ids, scores); });
}

void mach_topk_candidates(const MachScores& in, const int64_t* offsets, const int32_t* by_bucket, int64_t m,
                          int64_t k, int threads, int32_t* ids, float* scores) {
  check(in, k);
  struct Scratch {
    std::vector<int32_t> seen;  // the last row that looked at the label, plus 1
    std::vector<float> values;
  };
  std::vector<Scratch> scratch(at(std::max(threads, 1)));
  m = std::min(m, in.buckets);
  parallel_for(in.rows, threads, [&](int64_t row, int thread) {
    Scratch& own = scratch[at(thread)];
    own.seen.resize(at(in.labels), 0);
    TopK best(k);
    const auto tag = static_cast<int32_t>(row + 1);
    for (int64_t r = 0; r < in.repeats; ++r) {
      const float* p = in.p + (r * in.rows + row) * in.buckets;
      TopK top(m);
      for (int64_t b = 0; b < in.buckets; ++b) {
        if (!top.full() || p[b] > top.threshold()) top.push({p[b], static_cast<int32_t>(b)});
      }
      for (const Scored& bucket : top.sorted()) {
        const int64_t* range = offsets + r * (in.buckets + 1) + bucket.id;
        for (int64_t e = range[0]; e < range[1]; ++e) {
          const int32_t label = by_bucket[e];
          if (own.seen[at(label)] == tag) continue;
          own.seen[at(label)] = tag;
          best.push({aggregate_of(in, row, label, own.values), label});
        }
      }
    }
    const auto& sorted = best.sorted();
    for (int64_t j = 0; j < k; ++j) {
      const bool have = j < static_cast<int64_t>(sorted.size());
      ids[row * k + j] = have ? sorted[at(j)].id : -1;
      scores[row * k + j] = have ? sorted[at(j)].score : -std::numeric_limits<float>::infinity();
    }
  });
}

}  // namespace xmc
