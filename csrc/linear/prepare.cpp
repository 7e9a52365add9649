#include "linear/prepare.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "core/parallel.h"

namespace xmc::linear {
namespace {

constexpr int64_t kRowChunk = 4096;

template <class Fn>
void for_row_chunks(int64_t n, int threads, const Fn& fn) {
  parallel_for(chunk_count(n, kRowChunk), threads, [&](int64_t chunk, int) {
    const int64_t end = std::min(n, (chunk + 1) * kRowChunk);
    for (int64_t i = chunk * kRowChunk; i < end; ++i) fn(i);
  });
}

// New ids by falling frequency, ties by the caller's id.
std::vector<int32_t> frequency_order(const CsrView<>& X) {
  std::vector<int64_t> count(X.cols, 0);
  for (int64_t t = 0; t < X.nnz(); ++t) ++count[X.indices[t]];
  std::vector<int32_t> order(X.cols);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return count[a] > count[b]; });
  return order;
}

// Entries of one row in the order of their ids, which differ: bits in a bitmap with a bitmap of its words.
class RowSorter {
 public:
  void reserve(int64_t ids) {
    const int64_t words = (ids + 63) / 64;
    values_.resize(ids);
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
        const size_t word = block * 64 + std::countr_zero(full_[block]);
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

void pack_rows(const CsrView<>& X, PreparedFeatures& out, int threads) {
  int64_t words = 0, values = 0;
  for (int64_t i = 0; i < out.n; ++i) {
    RowRef& row = out.rows[i];
    row.value = values;
    row.id = words;
    row.tail = 0;
    for (int64_t t = X.begin(i); t < X.end(i); ++t) row.tail += out.renamed[X.indices[t]] >= kHeadIds;
    row.head = static_cast<int32_t>(X.size(i)) - row.tail;
    row.stored = (row.head + kPad - 1) / kPad * kPad;
    values += row.stored + row.tail;
    words += row.stored + 2 * row.tail;
  }
  out.ids = Buffer<uint16_t>(words);
  out.values = Buffer<float>(values);
  std::vector<RowSorter> sorters(std::max(threads, 1));
  parallel_for(chunk_count(out.n, kRowChunk), threads, [&](int64_t chunk, int thread) {
    RowSorter& sorter = sorters[thread];
    const int64_t end = std::min(out.n, (chunk + 1) * kRowChunk);
    for (int64_t i = chunk * kRowChunk; i < end; ++i) {
      sorter.reserve(out.D);
      for (int64_t t = X.begin(i); t < X.end(i); ++t) {
        sorter.add(out.renamed[X.indices[t]], X.data[t] * out.scale[i]);
      }
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

void copy_dense(const DenseView<float>& X, PreparedFeatures& out, int threads) {
  out.values = Buffer<float>(out.n * out.width);
  out.dense = out.values.data();
  for_row_chunks(out.n, threads, [&](int64_t i) {
    float* to = out.values.data() + i * out.width;
    for (int64_t j = 0; j < out.width; ++j) to[j] = X.row(i)[j] * out.scale[i];
  });
}

// The sums over rows; norm2 of each row.
void add_totals(PreparedFeatures& out, int threads) {
  out.total.assign(out.D, 0.0);
  for (int64_t i = 0; i < out.n; ++i) {
    for_entries(out, i, [&](int64_t j, float v) { out.total[j] += v; });
  }
  if (out.bias != 0) out.total[out.D - 1] = static_cast<double>(out.n) * out.bias;
  for (double t : out.total) out.total_norm2 += t * t;
  out.row_total.resize(out.n);
  for_row_chunks(out.n, threads, [&](int64_t i) {
    double norm2 = 0, dot = out.bias != 0 ? out.total[out.D - 1] * out.bias : 0;
    for_entries(out, i, [&](int64_t j, float v) {
      norm2 += static_cast<double>(v) * v;
      dot += out.total[j] * v;
    });
    out.rows[i].norm2 = static_cast<float>(norm2);
    out.row_total[i] = dot;
  });
}

}  // namespace

PreparedFeatures prepare_features(const LinearProblem& problem, bool copy, int threads) {
  PreparedFeatures out;
  out.n = problem.n();
  out.D = problem.D();
  out.width = problem.columns();
  out.bias = problem.rows.has_bias ? problem.rows.bias : 0.f;
  out.rows = Buffer<RowRef>(out.n);
  out.scale.resize(out.n);
  for_row_chunks(out.n, threads, [&](int64_t i) {
    const float* x = problem.dense() ? problem.X_dense.row(i) : problem.X.data + problem.X.begin(i);
    const int64_t size = problem.dense() ? out.width : problem.X.size(i);
    out.scale[i] = row_scale(problem.rows, problem.rows.normalize ? squared_length(x, size) : 0.0);
  });
  if (problem.dense()) {
    out.original.resize(out.width);
    std::iota(out.original.begin(), out.original.end(), 0);
  } else {
    out.original = frequency_order(problem.X);
  }
  if (out.D > out.width) out.original.push_back(static_cast<int32_t>(out.width));  // the bias comes last
  out.renamed.resize(out.D);
  for (int64_t j = 0; j < out.D; ++j) out.renamed[out.original[j]] = static_cast<int32_t>(j);
  if (!problem.dense()) {
    pack_rows(problem.X, out, threads);
  } else if (copy || problem.rows.normalize) {
    copy_dense(problem.X_dense, out, threads);
  } else {
    out.dense = problem.X_dense.data;
  }
  add_totals(out, threads);
  return out;
}

std::vector<MemoryRange> memory_of(const PreparedFeatures& X) {
  const auto range = [](const auto& b) {
    return MemoryRange{b.data(), static_cast<size_t>(b.size()) * sizeof(*b.data())};
  };
  return {range(X.rows), range(X.ids), range(X.values)};
}

}  // namespace xmc::linear
