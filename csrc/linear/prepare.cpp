#include "linear/prepare.h"

#include <algorithm>
#include <bit>
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

// Entries of one row in the order of their ids, which differ: bits in a bitmap with a bitmap of its words.
class RowSorter {
 public:
  void reserve(int64_t ids) {
    const auto words = static_cast<size_t>(ids + 63) / 64;
    values_.resize(static_cast<size_t>(ids));
    words_.resize(words);
    full_.resize((words + 63) / 64);
  }
  void add(int32_t id, float value) {
    values_[id] = value;
    words_[id / 64] |= uint64_t{1} << (id % 64);
    full_[id / 4096] |= uint64_t{1} << (id / 64 % 64);
  }
  template <class Fn>
  void take(const Fn& fn) {
    for (size_t block = 0; block < full_.size(); ++block) {
      for (; full_[block]; full_[block] &= full_[block] - 1) {
        const size_t word = block * 64 + static_cast<size_t>(std::countr_zero(full_[block]));
        for (; words_[word]; words_[word] &= words_[word] - 1) {
          const auto id = static_cast<int32_t>(word * 64) + std::countr_zero(words_[word]);
          fn(id, values_[id]);
        }
      }
    }
  }

 private:
  std::vector<float> values_;
  std::vector<uint64_t> words_, full_;
};

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
  std::vector<RowSorter> sorters(static_cast<size_t>(std::max(threads, 1)));
  parallel_for(chunk_count(out.n, kRowChunk), threads, [&](int64_t chunk, int thread) {
    RowSorter& sorter = sorters[thread];
    const int64_t end = std::min(out.n, (chunk + 1) * kRowChunk);
    for (int64_t i = chunk * kRowChunk; i < end; ++i) {
      sorter.reserve(out.D);
      for (int64_t t = X.begin(i); t < X.end(i) - skipped; ++t) sorter.add(renamed[X.indices[t]], X.data[t]);
      const RowRef& row = out.rows[i];
      uint16_t* id = out.ids.data() + row.id;
      float* value = out.values.data() + row.value;
      for (int32_t t = row.head; t < row.stored; ++t) {
        id[t] = static_cast<uint16_t>(std::min<int64_t>(t % kPad, out.D - 1));
      }
      int32_t left = row.head;
      sorter.take([&](int32_t j, float v) {
        if (left-- == 0) {
          id += row.stored - row.head;
          value += row.stored - row.head;
        }
        *id++ = static_cast<uint16_t>(j);
        if (j >= kHeadIds) *id++ = static_cast<uint16_t>(j >> 16);
        *value++ = v;
      });
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
