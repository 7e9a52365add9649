#include "decide/candidates.h"

#include <algorithm>
#include <numeric>

#include "core/parallel.h"
#include "decide/row_kernels.h"

namespace xmc::decide {
namespace {

constexpr int64_t kRows = 1024;  // rows that a thread takes at a time

// A row that is not ready as it is: what is wrong with it?
void look_closer(const Probabilities& proba, int64_t i, ProbabilityScan& part) {
  part.ready = false;
  for (int64_t e = proba.begin(i); e < proba.end(i); ++e) {
    const bool valid = proba.data[e] >= 0.f && proba.data[e] <= 1.f && proba.indices[e] >= 0 &&
                       proba.indices[e] < proba.cols;
    if (!valid && part.bad_entry < 0) part.bad_entry = e;
  }
  std::vector<int32_t> row(proba.indices + proba.begin(i), proba.indices + proba.end(i));
  std::sort(row.begin(), row.end());
  part.duplicates |= std::adjacent_find(row.begin(), row.end()) != row.end();
}

}  // namespace

ProbabilityScan scan_probabilities(const Probabilities& proba, int64_t k, int threads) {
  std::vector<ProbabilityScan> parts(chunk_count(proba.rows, kRows));
  const RowKernels& kernels = row_kernels();
  parallel_items(proba.rows, kRows, threads, [&](int64_t i, int) {
    const int32_t* row = proba.indices + proba.begin(i);
    const float* eta = proba.data + proba.begin(i);
    const int64_t m = proba.size(i);
    const bool usual =
        m >= k && (m == 0 || (row[0] >= 0 && row[m - 1] < proba.cols)) && kernels.usual(row, eta, m);
    if (!usual) look_closer(proba, i, parts[i / kRows]);
  });
  ProbabilityScan all;
  for (const ProbabilityScan& part : parts) {
    if (all.bad_entry < 0) all.bad_entry = part.bad_entry;
    all.duplicates |= part.duplicates;
    all.ready &= part.ready;
  }
  return all;
}

Candidates make_candidates(const Probabilities& proba, int64_t k, int threads) {
  Candidates out;
  out.indptr.assign(proba.rows + 1, 0);
  parallel_items(proba.rows, kRows, threads, [&](int64_t i, int) {
    const auto* row = proba.data + proba.begin(i);
    const int64_t positive = std::count_if(row, row + proba.size(i), [](float eta) { return eta > 0; });
    out.indptr[i + 1] = std::max(positive, k);
  });
  std::partial_sum(out.indptr.begin(), out.indptr.end(), out.indptr.begin());
  out.labels.resize(out.indptr.back());
  out.eta.resize(out.labels.size());

  parallel_items(proba.rows, kRows, threads, [&](int64_t i, int) {
    struct Entry {
      int32_t label;
      float eta;
    };
    const auto by_label = [](const Entry& x, const Entry& y) { return x.label < y.label; };
    std::vector<Entry> row;
    for (int64_t e = proba.begin(i); e < proba.end(i); ++e) {
      if (proba.data[e] > 0) row.push_back({proba.indices[e], proba.data[e]});
    }
    std::sort(row.begin(), row.end(), by_label);
    const size_t positive = row.size();
    for (int32_t label = 0; static_cast<int64_t>(row.size()) < k; ++label) {
      const bool taken = std::binary_search(row.begin(), row.begin() + static_cast<int64_t>(positive),
                                            Entry{label, 0}, by_label);
      if (!taken) row.push_back({label, 0.f});
    }
    std::inplace_merge(row.begin(), row.begin() + static_cast<int64_t>(positive), row.end(), by_label);
    const int64_t start = out.indptr[i];
    for (size_t c = 0; c < row.size(); ++c) {
      out.labels[start + c] = row[c].label;
      out.eta[start + c] = row[c].eta;
    }
  });
  return out;
}

std::vector<double> column_sums(const Probabilities& proba) {
  std::vector<double> sums(proba.cols, 0.0);
  for (int64_t e = 0; e < proba.nnz(); ++e) {
    sums[proba.indices[e]] += proba.data ? static_cast<double>(proba.data[e]) : 1.0;
  }
  return sums;
}

std::vector<float> blended_truth(const Probabilities& proba, const CsrView<int32_t, float>& truth,
                                 const float* trust, int threads) {
  std::vector<float> out(proba.nnz());
  parallel_items(proba.rows, kRows, threads, [&](int64_t i, int) {
    for (int64_t e = proba.begin(i); e < proba.end(i); ++e) {
      out[e] = (1.f - trust[proba.indices[e]]) * proba.data[e];
    }
    const int32_t *row = proba.indices + proba.begin(i), *end = proba.indices + proba.end(i);
    for (int64_t y = truth.begin(i); y < truth.end(i); ++y) {
      const int32_t label = truth.indices[y];
      row = std::lower_bound(row, end, label);
      if (row == end) break;
      if (*row == label) out[row - proba.indices] += trust[label];
    }
  });
  return out;
}

}  // namespace xmc::decide
