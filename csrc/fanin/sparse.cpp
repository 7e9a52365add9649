// Backward for a sparse output gradient: every entry (b, l, v) of g touches the s connections of label l.
#include <numeric>

#include "fanin/block.h"

namespace xmc::fanin {
namespace {

// Calls fn(i, index) for the connections of a label.
template <class Fn>
void for_connections(const Layer& layer, int64_t label, const Fn& fn) {
  const int64_t s = layer.fan_in, start = label / layer.group * s;
  const auto visit = [&](const auto* list) {
    for (int64_t i = 0; i < s; ++i) {
      const auto d = static_cast<int64_t>(list[i]);
      if (d < 0 || d >= layer.features)
        throw std::invalid_argument("indices must be below the number of features");
      fn(i, d);
    }
  };
  if (layer.index_bits == 16) {
    visit(static_cast<const uint16_t*>(layer.indices) + start);
  } else {
    visit(static_cast<const int32_t*>(layer.indices) + start);
  }
}

const float* widened(ConstTensor t, int64_t from, int64_t n, std::vector<float>& scratch) {
  if (t.type == DType::f32) return static_cast<const float*>(t.data) + from;
  scratch.resize(n);
  fanin_convert().widen(at(t, from), t.type, n, scratch.data());
  return scratch.data();
}

void check_columns(const CsrView<>& g) {
  for (int64_t e = 0; e < g.nnz(); ++e) {
    if (g.indices[e] < 0 || g.indices[e] >= g.cols)
      throw std::invalid_argument("a column of g is not a label");
  }
}

}  // namespace

void grad_features_sparse(const Layer& layer, const CsrView<>& g, Tensor gx, int threads) {
  check(layer, g.rows);
  check_columns(g);
  const int64_t s = layer.fan_in, features = layer.features;
  const int64_t rows = 4;  // enough work for a block
  parallel_for(chunk_count(g.rows, rows), threads, [&](int64_t block, int) {
    std::vector<float> scratch, sum(features);
    for (int64_t b = block * rows; b < std::min(g.rows, (block + 1) * rows); ++b) {
      std::fill(sum.begin(), sum.end(), 0.f);
      for (int64_t e = g.begin(b); e < g.end(b); ++e) {
        const float v = g.data ? g.data[e] : 1.f;
        const float* w = widened(layer.weights, g.indices[e] * s, s, scratch);
        for_connections(layer, g.indices[e], [&](int64_t i, int64_t d) { sum[d] += v * w[i]; });
      }
      fanin_convert().narrow(sum.data(), gx.type, features, at(gx, b * features), false);
    }
  });
}

SparseGradients grad_weights_sparse(const Layer& layer, ConstTensor x, const CsrView<>& g, int threads) {
  check(layer, g.rows);
  check_columns(g);
  const int64_t s = layer.fan_in, nnz = g.nnz();
  struct Entry {
    int32_t label, row;
    float value;
  };
  std::vector<Entry> entries;
  entries.reserve(nnz);
  for (int64_t b = 0; b < g.rows; ++b) {
    for (int64_t e = g.begin(b); e < g.end(b); ++e) {
      entries.push_back({g.indices[e], static_cast<int32_t>(b), g.data ? g.data[e] : 1.f});
    }
  }
  std::stable_sort(entries.begin(), entries.end(),
                   [](const Entry& a, const Entry& b) { return a.label < b.label; });
  SparseGradients out;
  std::vector<size_t> starts;
  for (size_t e = 0; e < entries.size(); ++e) {
    if (e == 0 || entries[e].label != entries[e - 1].label) {
      starts.push_back(e);
      out.labels.push_back(entries[e].label);
    }
  }
  starts.push_back(entries.size());
  const auto n = static_cast<int64_t>(out.labels.size());
  out.weights.assign(n * s, 0.f);
  out.bias.assign(n, 0.f);
  // float32 rows for the gathers; x is small beside the layer
  std::vector<float> scratch;
  const float* rows = widened(x, 0, g.rows * layer.features, scratch);
  const int64_t labels = 64;
  parallel_for(chunk_count(n, labels), threads, [&](int64_t block, int) {
    for (int64_t u = block * labels; u < std::min(n, (block + 1) * labels); ++u) {
      float* gw = out.weights.data() + u * s;
      float& gb = out.bias[u];
      for (size_t e = starts[u]; e < starts[u + 1]; ++e) {
        const float* row = rows + entries[e].row * layer.features;
        const float v = entries[e].value;
        for_connections(layer, entries[e].label, [&](int64_t i, int64_t d) { gw[i] += v * row[d]; });
        gb += v;
      }
    }
  });
  return out;
}

}  // namespace xmc::fanin
