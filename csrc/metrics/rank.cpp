#include "metrics/rank.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <stdexcept>
#include <string>

#include "core/parallel.h"

namespace xmc::metrics {
namespace {

constexpr int64_t kRowChunk = 4096;

template <class Value>
struct Entry {
  Value score;
  int32_t id;
};

template <class Value>
bool before(const Entry<Value>& a, const Entry<Value>& b) {
  const bool a_nan = a.score != a.score, b_nan = b.score != b.score;
  if (a_nan != b_nan) return b_nan;
  if (!a_nan && a.score != b.score) return a.score > b.score;
  return a.id < b.id;
}

bool filtered(const PairView& filter, int64_t row, int32_t id) {
  if (!filter.indptr) return false;
  return std::binary_search(filter.indices + filter.begin(row), filter.indices + filter.end(row), id);
}

std::string at_row(int64_t row) {
  return " in row " + std::to_string(row) + " of the predictions";
}

// Throws when an id occurs twice. Short lists compare all pairs, longer ones a sorted copy.
template <class Id>
void check_unique(const Id* ids, int64_t n, int64_t row, std::vector<Id>& scratch) {
  constexpr int64_t kShort = 16;
  bool ascending = true;
  for (int64_t j = 1; j < n && ascending; ++j) ascending = ids[j - 1] < ids[j];
  if (ascending) return;
  const auto refuse = [row](Id id) {
    throw std::invalid_argument("label " + std::to_string(id) + " occurs twice" + at_row(row));
  };
  if (n <= kShort) {
    for (int64_t i = 1; i < n; ++i) {
      for (int64_t j = 0; j < i; ++j) {
        if (ids[i] == ids[j]) refuse(ids[i]);
      }
    }
    return;
  }
  scratch.assign(ids, ids + n);
  std::sort(scratch.begin(), scratch.end());
  const auto twice = std::adjacent_find(scratch.begin(), scratch.end());
  if (twice != scratch.end()) refuse(*twice);
}

template <class Id>
void check_range(const Id* ids, int64_t n, int64_t labels, int64_t row) {
  for (int64_t j = 0; j < n; ++j) {
    if (ids[j] < 0 || static_cast<int64_t>(ids[j]) >= labels) {
      throw std::invalid_argument("label ids must be in [0, " + std::to_string(labels) + "), got " +
                                  std::to_string(ids[j]) + at_row(row));
    }
  }
}

// Runs rank_row(row, chunk's lists, scratch) over all rows; chunks are joined in row order.
template <class RankRow>
RankedLists rank_rows(int64_t rows, int threads, const RankRow& rank_row) {
  const int64_t chunks = chunk_count(rows, kRowChunk);
  std::vector<RankedLists> parts(chunks);
  parallel_for(chunks, threads, [&](int64_t chunk, int) {
    RankedLists& part = parts[chunk];
    const int64_t end = std::min(rows, (chunk + 1) * kRowChunk);
    part.indptr.reserve(end - chunk * kRowChunk + 1);
    rank_row(chunk * kRowChunk, end, part);
  });
  RankedLists all;
  size_t total = 0;
  for (const auto& part : parts) total += part.ids.size();
  all.ids.reserve(total);
  all.indptr.reserve(rows + 1);
  for (auto& part : parts) {
    const int64_t first = all.indptr.back();
    for (size_t i = 1; i < part.indptr.size(); ++i) all.indptr.push_back(first + part.indptr[i]);
    all.ids.insert(all.ids.end(), part.ids.begin(), part.ids.end());
    part = RankedLists{};
  }
  return all;
}

void close_row(RankedLists& lists) {
  lists.indptr.push_back(static_cast<int64_t>(lists.ids.size()));
}

template <class Value>
void take_best(std::vector<Entry<Value>>& entries, int64_t k, RankedLists& out) {
  if (!std::is_sorted(entries.begin(), entries.end(), before<Value>)) {
    const auto keep = static_cast<ptrdiff_t>(std::min<int64_t>(k, static_cast<int64_t>(entries.size())));
    std::partial_sort(entries.begin(), entries.begin() + keep, entries.end(), before<Value>);
  }
  const size_t keep = std::min(static_cast<size_t>(k), entries.size());
  for (size_t j = 0; j < keep; ++j) out.ids.push_back(entries[j].id);
  close_row(out);
}

}  // namespace

template <class Value>
RankedLists rank_sparse(const CsrView<int32_t, Value>& scores, const PairView& filter, int64_t k,
                        int threads) {
  return rank_rows(scores.rows, threads, [&](int64_t begin, int64_t end, RankedLists& out) {
    std::vector<Entry<Value>> entries;
    std::vector<int32_t> scratch;
    for (int64_t row = begin; row < end; ++row) {
      const int32_t* ids = scores.indices + scores.begin(row);
      check_range(ids, scores.size(row), scores.cols, row);
      check_unique(ids, scores.size(row), row, scratch);
      entries.clear();
      for (int64_t e = scores.begin(row); e < scores.end(row); ++e) {
        if (!filtered(filter, row, scores.indices[e])) entries.push_back({scores.data[e], scores.indices[e]});
      }
      take_best(entries, k, out);
    }
  });
}

template <class Value>
RankedLists rank_dense(const DenseView<Value>& scores, const PairView& filter, int64_t k, int threads) {
  return rank_rows(scores.rows, threads, [&](int64_t begin, int64_t end, RankedLists& out) {
    std::vector<Entry<Value>> heap;  // the k best so far, the worst of them in front
    for (int64_t row = begin; row < end; ++row) {
      const Value* s = scores.row(row);
      heap.clear();
      for (int64_t j = 0; j < scores.cols; ++j) {
        const Entry<Value> entry{s[j], static_cast<int32_t>(j)};
        const bool full = static_cast<int64_t>(heap.size()) >= k;
        if (full && (k == 0 || !before(entry, heap.front()))) continue;
        if (filtered(filter, row, entry.id)) continue;
        if (full) {
          std::pop_heap(heap.begin(), heap.end(), before<Value>);
          heap.pop_back();
        }
        heap.push_back(entry);
        std::push_heap(heap.begin(), heap.end(), before<Value>);
      }
      std::sort_heap(heap.begin(), heap.end(), before<Value>);
      take_best(heap, k, out);
    }
  });
}

RankedLists rank_ids(const DenseView<int64_t>& ids, int64_t labels, const PairView& filter, int64_t k,
                     int threads) {
  return rank_rows(ids.rows, threads, [&](int64_t begin, int64_t end, RankedLists& out) {
    std::vector<int64_t> scratch;
    out.ids.reserve((end - begin) * std::min(k, ids.cols));
    for (int64_t row = begin; row < end; ++row) {
      const int64_t* list = ids.row(row);
      check_range(list, ids.cols, labels, row);
      check_unique(list, ids.cols, row, scratch);
      const size_t first = out.ids.size();
      for (int64_t j = 0; j < ids.cols && static_cast<int64_t>(out.ids.size() - first) < k; ++j) {
        const auto id = static_cast<int32_t>(list[j]);
        if (!filtered(filter, row, id)) out.ids.push_back(id);
      }
      close_row(out);
    }
  });
}

template RankedLists rank_sparse<float>(const CsrView<int32_t, float>&, const PairView&, int64_t, int);
template RankedLists rank_sparse<double>(const CsrView<int32_t, double>&, const PairView&, int64_t, int);
template RankedLists rank_dense<float>(const DenseView<float>&, const PairView&, int64_t, int);
template RankedLists rank_dense<double>(const DenseView<double>&, const PairView&, int64_t, int);

}  // namespace xmc::metrics
