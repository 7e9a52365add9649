#include "metrics/ranking.h"

#include <algorithm>
#include <vector>

#include "core/confusion.h"
#include "core/parallel.h"

namespace xmc::metrics {
namespace {

template <class Value>
struct Entry {
  Value score;
  bool relevant;
};

// Goes down the groups of equal scores, counting the false labels so far.
template <class Value>
RankingSums of_row(std::vector<Entry<Value>>& row, int64_t positives, int64_t labels) {
  std::sort(row.begin(), row.end(), [](const auto& a, const auto& b) { return a.score > b.score; });
  int64_t found = 0, wrong = 0, misordered = 0, coverage = 0;
  const auto close_group = [&](int64_t relevant, int64_t irrelevant) {
    found += relevant;
    wrong += irrelevant;
    misordered += relevant * wrong;
    if (relevant > 0) coverage = found + wrong;
  };
  for (size_t first = 0, last; first < row.size(); first = last) {
    int64_t relevant = 0;
    for (last = first; last < row.size() && row[last].score == row[first].score; ++last) {
      relevant += row[last].relevant;
    }
    close_group(relevant, static_cast<int64_t>(last - first) - relevant);
  }
  close_group(positives - found, labels - positives - wrong);  // the labels that are not stored
  const auto pairs = static_cast<double>(positives) * static_cast<double>(labels - positives);
  return {static_cast<double>(coverage), ratio(static_cast<double>(misordered), pairs)};
}

}  // namespace

template <class Value>
RankingSums ranking_sums(const CsrView<int32_t, float>& truth, const CsrView<int32_t, Value>& scores,
                         int threads) {
  constexpr int64_t kRows = 256;  // rows that a thread takes at a time
  std::vector<RankingSums> rows(truth.rows);
  std::vector<std::vector<Entry<Value>>> scratch(threads);
  parallel_items(truth.rows, kRows, threads, [&](int64_t i, int thread) {
    auto& row = scratch[thread];
    row.clear();
    const int32_t *begin = truth.indices + truth.begin(i), *end = truth.indices + truth.end(i);
    for (int64_t e = scores.begin(i); e < scores.end(i); ++e) {
      const Value score = scores.data[e];
      if (score == score) row.push_back({score, std::binary_search(begin, end, scores.indices[e])});
    }
    rows[i] = of_row(row, truth.size(i), truth.cols);
  });
  RankingSums sums;
  for (const RankingSums& row : rows) {
    sums.coverage += row.coverage;
    sums.loss += row.loss;
  }
  return sums;
}

template RankingSums ranking_sums<float>(const CsrView<int32_t, float>&, const CsrView<int32_t, float>&, int);
template RankingSums ranking_sums<double>(const CsrView<int32_t, float>&, const CsrView<int32_t, double>&,
                                          int);

}  // namespace xmc::metrics
