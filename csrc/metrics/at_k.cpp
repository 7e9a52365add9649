#include "metrics/at_k.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>

#include "core/confusion.h"
#include "core/parallel.h"
#include "core/prefetch.h"

namespace xmc::metrics {
namespace {

constexpr int64_t kRowChunk = 4096;
constexpr int64_t kLabelChunk = 1 << 13;

// Ids come in random order and their tables are larger than the near caches: the entry of the id so many
// places ahead is fetched (twice as fast at 670,000 labels).
constexpr int64_t kAhead = 24;

bool contains(const int32_t* sorted, int64_t n, int32_t id) {
  constexpr int64_t kShort = 32;
  if (n > kShort) return std::binary_search(sorted, sorted + n, id);
  bool found = false;
  for (int64_t j = 0; j < n; ++j) found |= sorted[j] == id;
  return found;
}

// Adds up the partial results of parallel chunks in chunk order: the same bits for any number of threads.
template <class Fn>
std::vector<double> chunked_sum(int64_t chunks, int64_t width, int threads, const Fn& fn) {
  std::vector<double> parts(chunks * width, 0.0);
  parallel_for(chunks, threads, [&](int64_t chunk, int) { fn(chunk, parts.data() + chunk * width); });
  std::vector<double> total(width, 0.0);
  for (int64_t c = 0; c < chunks; ++c) {
    for (int64_t i = 0; i < width; ++i) total[i] += parts[c * width + i];
  }
  return total;
}

// d_j, and the ideal sums of the first j: both indexed by rank from 1.
struct Discounts {
  explicit Discounts(int64_t k) : gain(k + 1), ideal(k + 1) {
    for (size_t j = 1; j < gain.size(); ++j) {
      gain[j] = 1.0 / std::log2(static_cast<double>(j) + 1.0);
      ideal[j] = ideal[j - 1] + gain[j];
    }
  }
  std::vector<double> gain, ideal;
};

// The largest `keep` values first, in order. A few values are placed by counting the larger ones: no
// branches.
void sort_largest(std::vector<double>& values, int64_t keep) {
  constexpr size_t kFew = 16;
  const size_t n = values.size();
  if (n > kFew) {
    std::partial_sort(values.begin(), values.begin() + static_cast<ptrdiff_t>(keep), values.end(),
                      std::greater<>());
    return;
  }
  double sorted[kFew];
  for (size_t i = 0; i < n; ++i) {
    size_t place = 0;
    for (size_t j = 0; j < n; ++j) {
      place += static_cast<size_t>(values[j] > values[i]) +
               (static_cast<size_t>(values[j] == values[i]) & static_cast<size_t>(j < i));
    }
    sorted[place] = values[i];
  }
  std::copy_n(sorted, n, values.begin());
}

// One row's contribution to all sums at all k. The scratch vector holds the true labels' q, largest first.
void add_row(const AtK& at, int64_t row, const double* q, const Discounts& d, std::vector<double>& best,
             double* sums) {
  const double w = at.weights ? at.weights[row] : 1.0;
  if (w == 0) return;
  const auto n_ks = static_cast<int64_t>(at.ks.size());
  const int64_t k_max = at.ks.back(), positives = at.truth.size(row);
  const auto count = static_cast<double>(positives);
  const int64_t first = at.indptr[row], length = at.indptr[row + 1] - first;

  best.clear();
  if (q) {
    const int64_t truth_end = at.truth.nnz();
    for (int64_t e = at.truth.begin(row); e < at.truth.end(row); ++e) {
      if (e + kAhead < truth_end) prefetch(q + at.truth.indices[e + kAhead]);
      best.push_back(q[at.truth.indices[e]]);
    }
    sort_largest(best, std::min(k_max, positives));
  }
  double hits = 0, predicted = 0, dcg = 0, ps = 0, psdcg = 0, ps_best = 0, psdcg_best = 0;
  int64_t j = 0;  // ranks done
  for (int64_t c = 0; c < n_ks; ++c) {
    const int64_t k = at.ks[c];
    for (; j < k; ++j) {
      const double gain = d.gain[j + 1];
      if (j < length && at.hits[first + j] != kIgnored) predicted += 1;
      if (j < length && at.hits[first + j] == kHit) {
        hits += 1;
        dcg += gain;
        if (q) {
          ps += q[at.ids[first + j]];
          psdcg += q[at.ids[first + j]] * gain;
        }
      }
      if (q && j < positives) {
        ps_best += best[j];
        psdcg_best += best[j] * gain;
      }
    }
    const auto add = [&](InstanceSum which, double value) { sums[which * n_ks + c] += w * value; };
    const double psp = ps / static_cast<double>(k);
    add(kHits, hits);
    add(kPsp, psp);
    add(kPspSquare, psp * psp);
    add(kPspBest, ps_best / static_cast<double>(k));
    add(kSuccess, hits > 0);
    add(kErrors, predicted + count - 2 * hits);
    add(kExact, hits == count && hits == predicted);
    add(kPredicted, predicted);
    add(kSetPrecision, ratio(hits, predicted));
    add(kSetF1, ratio(2 * hits, predicted + count));
    if (positives > 0) {
      const double ideal = d.ideal[std::min(k, positives)];
      add(kRecall, hits / count);
      add(kNdcg, dcg / ideal);
      add(kPsndcg, psdcg / ideal);
      add(kPsndcgBest, psdcg_best / ideal);
    }
  }
  sums[kInstanceSums * n_ks] += w;
  if (positives > 0) sums[kInstanceSums * n_ks + 1] += w;
  sums[kInstanceSums * n_ks + 2] += w * count;
}

}  // namespace

std::vector<uint8_t> match_hits(const CsrView<int32_t, float>& truth, const int64_t* indptr,
                                const int32_t* ids, int threads) {
  std::vector<uint8_t> hits(truth.rows ? indptr[truth.rows] : 0);
  parallel_items(truth.rows, kRowChunk, threads, [&](int64_t row, int) {
    const int32_t* labels = truth.indices + truth.begin(row);
    for (int64_t e = indptr[row]; e < indptr[row + 1]; ++e) {
      hits[e] = contains(labels, truth.size(row), ids[e]) ? kHit : kMiss;
    }
  });
  return hits;
}

std::vector<double> instance_sums(const AtK& at, const double* inverse_propensity, int threads) {
  const size_t width = kInstanceSums * at.ks.size() + 3;
  const Discounts discounts(at.ks.back());
  return chunked_sum(chunk_count(at.truth.rows, kRowChunk), width, threads, [&](int64_t chunk, double* sums) {
    std::vector<double> best;
    const int64_t end = std::min(at.truth.rows, (chunk + 1) * kRowChunk);
    for (int64_t row = chunk * kRowChunk; row < end; ++row) {
      add_row(at, row, inverse_propensity, discounts, best, sums);
    }
  });
}

// Each thread owns a range of labels and reads all lists: no atomics, and integers add up to the same counts.
// The table is larger than the near caches, and ids come in random order: huge pages (Buffer) save the TLB.
Buffer<int32_t> label_counts(const AtK& at, int threads) {
  const int64_t labels = at.truth.cols, n_ks = static_cast<int64_t>(at.ks.size()), width = 2 * n_ks + 1;
  Buffer<int32_t> counts(labels * width);
  std::vector<int32_t> column(at.ks.back());  // rank -> the first k that includes it
  for (int64_t c = n_ks - 1; c >= 0; --c) {
    std::fill_n(column.begin(), at.ks[c], static_cast<int32_t>(c));
  }
  const int64_t parts = std::max<int64_t>(1, std::min<int64_t>(threads, chunk_count(labels, kLabelChunk)));
  const int64_t range = chunk_count(labels, parts);
  parallel_for(parts, threads, [&](int64_t part, int) {
    const int64_t low = part * range, high = std::min(labels, low + range);
    const auto mine = [low, high](int64_t id) { return id >= low && id < high; };
    const int64_t truth_end = at.truth.nnz(), lists_end = at.truth.rows ? at.indptr[at.truth.rows] : 0;
    for (int64_t row = 0; row < at.truth.rows; ++row) {
      const int32_t w = at.weights ? at.weights[row] : 1;
      for (int64_t e = at.truth.begin(row); e < at.truth.end(row); ++e) {
        const int64_t id = at.truth.indices[e];
        if (e + kAhead < truth_end) prefetch(counts.data() + at.truth.indices[e + kAhead] * width);
        if (mine(id)) counts[id * width] += w;
      }
      const int64_t first = at.indptr[row];
      const int64_t length = std::min(at.indptr[row + 1] - first, at.ks.back());
      for (int64_t j = 0; j < length; ++j) {
        const int64_t id = at.ids[first + j];
        if (first + j + kAhead < lists_end) prefetch(counts.data() + at.ids[first + j + kAhead] * width);
        if (!mine(id)) continue;
        int32_t* count = counts.data() + id * width + 1 + column[j];
        count[0] += at.hits[first + j] == kHit ? w : 0;
        count[n_ks] += w;
      }
    }
  });
  return counts;
}

// Three passes over a chunk of labels, each over the list the one before made: all labels, the predicted
// ones, those with a hit. Which label is of which kind is random, so that branches inside one pass would
// mostly be mispredicted. A chunk's counts stay in the near cache between the passes.
std::vector<double> macro_sums(const int32_t* counts, int64_t labels, int64_t ks, double rows, double beta,
                               const int32_t* group, int64_t groups, bool positives_only, int threads) {
  const int64_t width = 2 * ks + 1, out_width = kMacroSums * ks + 2;
  const auto chunk_sums = [&](int64_t chunk, double* sums) {
    const int64_t begin = chunk * kLabelChunk, end = std::min(labels, begin + kLabelChunk);
    std::vector<int32_t> predicted(kLabelChunk), hit(kLabelChunk);
    for (int64_t g = 0; g < groups; ++g) {
      double* out = sums + g * out_width;
      size_t n_predicted = 0, n_hit = 0;
      int64_t n_labels = 0, n_positive = 0, n_negative = 0;  // n_negative: labels of the sums with a negative
      for (int64_t label = begin; label < end; ++label) {
        const int32_t* count = counts + label * width;
        const bool inside = !group || group[label] == g;
        const bool summed = inside && !(positives_only && count[0] == 0);
        int64_t tp = 0, q = 0;
        for (int64_t c = 0; c < ks; ++c) {
          tp += count[1 + c];
          q += count[1 + ks + c];
        }
        n_labels += inside;
        n_positive += inside && count[0] > 0;
        n_negative += summed && count[0] < rows;
        predicted[n_predicted] = hit[n_hit] = static_cast<int32_t>(label);
        n_predicted += summed && q > 0;
        n_hit += summed && tp > 0;
      }
      out[kMacroSums * ks] = static_cast<double>(n_labels);
      out[kMacroSums * ks + 1] = static_cast<double>(n_positive);
      for (int64_t c = 0; c < ks; ++c) out[kBalanced * ks + c] = 0.5 * static_cast<double>(n_negative);
      // Balanced accuracy is linear: 1/2 [n > p] + tpr / 2 - fp / (2 (n - p)).
      for (size_t i = 0; i < n_predicted; ++i) {
        const int32_t* count = counts + predicted[i] * width;
        const double half = 0.5 / std::max(rows - count[0], 1.0);
        int64_t fp = 0;
        for (int64_t c = 0; c < ks; ++c) {
          fp += count[1 + ks + c] - count[1 + c];
          out[kBalanced * ks + c] -= half * static_cast<double>(fp);
        }
      }
      for (size_t i = 0; i < n_hit; ++i) {
        const int32_t* count = counts + hit[i] * width;
        const double p = count[0];
        double tp = 0, q = 0;
        for (int64_t c = 0; c < ks; ++c) {
          tp += count[1 + c];
          q += count[1 + ks + c];
          const auto add = [&](MacroSum which, double value) { out[which * ks + c] += value; };
          add(kPrecision, Precision{}.value(tp, q, p, rows));
          add(kMacroRecall, Recall{}.value(tp, q, p, rows));
          add(kFbeta, FBeta{beta * beta}.value(tp, q, p, rows));
          add(kCoverage, tp > 0);
          add(kBalanced, 0.5 * ratio(tp, p));
          add(kGmean, GMean{}.value(tp, q, p, rows));
          add(kJaccard, Jaccard{}.value(tp, q, p, rows));
        }
      }
    }
  };
  return chunked_sum(chunk_count(labels, kLabelChunk), groups * out_width, threads, chunk_sums);
}

}  // namespace xmc::metrics
