#include "linear/prepare.h"

#include <algorithm>
#include <numeric>

#include "core/parallel.h"

namespace xmc {
namespace {

constexpr int32_t kHeadIds = 65536;
constexpr int64_t kRowChunk = 4096;

template <class Fn>
void for_row_chunks(int64_t n, int threads, const Fn& fn) {
  parallel_for(chunk_count(n, kRowChunk), threads, [&](int64_t chunk, int) {
    const int64_t end = std::min(n, (chunk + 1) * kRowChunk);
    for (int64_t i = chunk * kRowChunk; i < end; ++i) fn(i);
  });
}

// The value of the last feature if every row has the same, else 0.
float constant_last(const LinearProblem& problem) {
  const int64_t n = problem.rows(), D = problem.features();
  if (n == 0 || D == 0) return 0;
  const auto last = [&](int64_t i) {
    if (problem.dense()) return problem.X_dense.data[i * D + D - 1];
    const int64_t end = problem.X.end(i);
    return end > problem.X.begin(i) && problem.X.indices[end - 1] == D - 1 ? problem.X.data[end - 1] : 0.f;
  };
  const float value = last(0);
  for (int64_t i = 1; i < n; ++i) {
    if (last(i) != value) return 0;
  }
  return value;
}

// New ids by falling frequency, ties by the caller's id; a bias comes last.
std::vector<int32_t> frequency_order(const CsrView<int32_t, float>& X, bool bias) {
  std::vector<int64_t> count(static_cast<size_t>(X.cols), 0);
  for (int64_t t = 0; t < X.nnz(); ++t) ++count[X.indices[t]];
  if (bias) count.back() = -1;
  std::vector<int32_t> order(count.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return count[a] > count[b]; });
  return order;
}

void pack_rows(const CsrView<int32_t, float>& X, PreparedFeatures& out, int threads) {
  std::vector<int32_t> renamed(static_cast<size_t>(out.D));
  for (int64_t j = 0; j < out.D; ++j) renamed[out.original[j]] = static_cast<int32_t>(j);
  const int64_t skipped = out.D - out.width();  // entries of a row left out, its last ones
  int64_t words = 0, values = 0;
  for (int64_t i = 0; i < out.n; ++i) {
    RowRef& row = out.rows[i];
    const int64_t end = X.end(i) - skipped;
    row.value = values;
    row.id = words;
    row.tail = 0;
    for (int64_t t = X.begin(i); t < end; ++t) row.tail += renamed[X.indices[t]] >= kHeadIds;
    row.head = static_cast<int32_t>(end - X.begin(i)) - row.tail;
    row.stored = (row.head + kPad - 1) / kPad * kPad;
    values += row.stored + row.tail;
    words += row.stored + 2 * row.tail;
  }
  out.ids = Buffer<uint16_t>(words);
  out.values = Buffer<float>(values);
  struct Entry {
    int32_t id;
    float value;
  };
  std::vector<std::vector<Entry>> scratch(static_cast<size_t>(std::max(threads, 1)));
  parallel_for(chunk_count(out.n, kRowChunk), threads, [&](int64_t chunk, int thread) {
    std::vector<Entry>& entries = scratch[thread];
    const int64_t end = std::min(out.n, (chunk + 1) * kRowChunk);
    for (int64_t i = chunk * kRowChunk; i < end; ++i) {
      entries.clear();
      for (int64_t t = X.begin(i); t < X.end(i) - skipped; ++t) {
        entries.push_back({renamed[X.indices[t]], X.data[t]});
      }
      std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) { return a.id < b.id; });
      const RowRef& row = out.rows[i];
      uint16_t* id = out.ids.data() + row.id;
      float* value = out.values.data() + row.value;
      for (const Entry& e : entries) {
        if (&e - entries.data() == row.head) {
          id += row.stored - row.head;
          value += row.stored - row.head;
        }
        *id++ = static_cast<uint16_t>(e.id);
        if (e.id >= kHeadIds) *id++ = static_cast<uint16_t>(e.id >> 16);
        *value++ = e.value;
      }
    }
  });
}

}  // namespace

PreparedFeatures prepare_features(const LinearProblem& problem, int threads) {
  PreparedFeatures out;
  out.n = problem.rows();
  out.D = problem.features();
  out.rows = Buffer<RowRef>(out.n);
  out.bias = constant_last(problem);
  if (problem.dense()) {
    out.dense = problem.X_dense.data;
    out.original.resize(static_cast<size_t>(out.D));
    std::iota(out.original.begin(), out.original.end(), 0);
  } else {
    out.original = frequency_order(problem.X, out.bias != 0);
    pack_rows(problem.X, out, threads);
  }
  out.total.assign(static_cast<size_t>(out.D), 0.0);
  for (int64_t i = 0; i < out.n; ++i) {
    for_entries(out, i, [&](int64_t j, float v) { out.total[j] += v; });
  }
  if (out.bias != 0) out.total[out.D - 1] = static_cast<double>(out.n) * out.bias;
  for (double t : out.total) out.total_norm2 += t * t;
  out.row_total.resize(static_cast<size_t>(out.n));
  for_row_chunks(out.n, threads, [&](int64_t i) {
    double norm2 = 0, dot = out.bias != 0 ? out.total[out.D - 1] * out.bias : 0;
    for_entries(out, i, [&](int64_t j, float v) {
      norm2 += static_cast<double>(v) * v;
      dot += out.total[j] * v;
    });
    out.rows[i].norm2 = static_cast<float>(norm2);
    out.row_total[i] = dot;
  });
  return out;
}

}  // namespace xmc
