// Runs every kernel on small odd sizes against plain loops; for the sanitizers, which want a
// program of their own. Every array is its own allocation, so that one step outside is seen.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <vector>

#include "decide/weighted_topk_cuda.h"
#include "fanin/fanin_cuda.h"
#include "gather/gather_dot_cuda.h"
#include "mach/mach_cuda.h"

using xmc::fanin::CudaLayer;
using xmc::fanin::kBatch;

extern "C" {
int xmc_fanin_transpose_in(const void*, int, int64_t, int64_t, int64_t, float*, int64_t, void*);
int xmc_fanin_transpose_out(const float*, int64_t, int64_t, int64_t, void*, int, int64_t, void*);
int xmc_fanin_forward(const CudaLayer*, const float*, int64_t, int64_t, void*, int, void*);
int64_t xmc_fanin_loss_parts(int64_t);
int xmc_fanin_loss(float*, const uint8_t*, int64_t, int64_t, int, float, float*, void*);
int xmc_fanin_grad_features(const CudaLayer*, const float*, int64_t, const int64_t*, const int32_t*, float*,
                            void*);
int xmc_fanin_grad_weights(const CudaLayer*, const void*, int, const void*, int, int64_t, int64_t, void*, int,
                           void*, int, void*);
int xmc_fanin_grad_features_sparse(const CudaLayer*, int64_t, const int64_t*, const int32_t*, const float*,
                                   float*, void*);
int xmc_fanin_grad_weights_sparse(const CudaLayer*, const void*, int, int64_t, const int64_t*, const int64_t*,
                                  const int64_t*, const float*, float*, float*, void*);
int xmc_decide_weighted_topk(const xmc::decide::CudaTopk*, void*);
int xmc_mach_hash(uint64_t, uint64_t, int64_t, int64_t, uint16_t*, void*);
int xmc_mach_scores(const xmc::mach::CudaMach*, void*);
int xmc_gather_dot(const xmc::gather::CudaGatherDot*, float*, void*);
int xmc_gather_dot_grad_h(const xmc::gather::CudaGatherDot*, const float*, float*, void*);
int xmc_gather_dot_grad_rows(const xmc::gather::CudaGatherDot*, const float*, int64_t, const int64_t*,
                             const int64_t*, float*, void*);
}

namespace {

using Floats = std::vector<float>;
bool failed = false;

void compare(const char* what, const Floats& got, const std::vector<double>& want) {
  for (size_t i = 0; i < want.size(); ++i) {
    if (!(std::fabs(got[i] - want[i]) <= 1e-4 * (1 + std::fabs(want[i])))) {
      std::printf("%s differs at %zu: %g, expected %g\n", what, i, got[i], want[i]);
      failed = true;
      return;
    }
  }
}

void check(int64_t B, int64_t D, int64_t L, int64_t s, int64_t group) {
  unsigned state = 7;
  const auto random = [&] { return (state = state * 1664525u + 1013904223u) >> 8; };
  const auto fill = [&](int64_t n) {
    Floats v(static_cast<size_t>(n));
    for (float& f : v) f = static_cast<float>(random() % 2001) / 1000.f - 1.f;
    return v;
  };
  const int64_t groups = (L + group - 1) / group, padded = (B + kBatch - 1) / kBatch * kBatch;
  std::vector<uint16_t> index(static_cast<size_t>(groups * s));
  for (int64_t g = 0; g < groups; ++g) {
    const int64_t shift = random() % D;
    for (int64_t i = 0; i < s; ++i)
      index[static_cast<size_t>(g * s + i)] = static_cast<uint16_t>((shift + i) % D);
  }
  const Floats x = fill(B * D), w = fill(L * s), bias = fill(L), g = fill(B * L);
  const CudaLayer layer{L, D, s, group, index.data(), w.data(), bias.data(), 16, 0, 0, 0};
  const auto d = [&](int64_t l, int64_t i) { return index[static_cast<size_t>(l / group * s + i)]; };
  std::vector<double> z(B * L), gx(B * D), gw(L * s), gb(L);
  for (int64_t b = 0; b < B; ++b) {
    for (int64_t l = 0; l < L; ++l) {
      z[b * L + l] = bias[l];
      gb[l] += g[b * L + l];
      for (int64_t i = 0; i < s; ++i) {
        z[b * L + l] += x[b * D + d(l, i)] * w[l * s + i];
        gx[b * D + d(l, i)] += w[l * s + i] * g[b * L + l];
        gw[l * s + i] += x[b * D + d(l, i)] * g[b * L + l];
      }
    }
  }
  Floats xt(D * padded), out(B * L), gt(L * padded), gxt(D * padded), got_gx(B * D), got_gw(L * s), got_gb(L);
  xmc_fanin_transpose_in(x.data(), 0, D, B, D, xt.data(), padded, nullptr);
  xmc_fanin_forward(&layer, xt.data(), padded, B, out.data(), 0, nullptr);
  compare("forward", out, z);

  std::vector<int64_t> starts(D + 1);
  std::vector<int32_t> connections;
  for (int64_t f = 0; f < D; ++f) {
    for (int64_t e = 0; e < groups * s; ++e) {
      if (index[static_cast<size_t>(e)] == f) connections.push_back(static_cast<int32_t>(e));
    }
    starts[f + 1] = static_cast<int64_t>(connections.size());
  }
  xmc_fanin_transpose_in(g.data(), 0, L, B, L, gt.data(), padded, nullptr);
  xmc_fanin_grad_features(&layer, gt.data(), padded, starts.data(), connections.data(), gxt.data(), nullptr);
  xmc_fanin_transpose_out(gxt.data(), padded, B, D, got_gx.data(), 0, D, nullptr);
  compare("grad_features", got_gx, gx);
  xmc_fanin_grad_weights(&layer, x.data(), 0, g.data(), 0, L, B, got_gw.data(), 0, got_gb.data(), 0, nullptr);
  compare("grad_weights", got_gw, gw);
  compare("grad_bias", got_gb, gb);

  // the same gradients, g given as sparse
  std::vector<int64_t> crow(B + 1), labels(L), by_label(L + 1), rows(B * L);
  std::vector<int32_t> col(B * L);
  Floats values(B * L), sparse_gx(B * D), sparse_gw(L * s), sparse_gb(L);
  for (int64_t b = 0; b < B; ++b) {
    crow[b + 1] = (b + 1) * L;
    for (int64_t l = 0; l < L; ++l) col[b * L + l] = static_cast<int32_t>(l);
  }
  xmc_fanin_grad_features_sparse(&layer, B, crow.data(), col.data(), g.data(), sparse_gx.data(), nullptr);
  compare("grad_features_sparse", sparse_gx, gx);
  for (int64_t l = 0; l < L; ++l) {
    labels[l] = l;
    by_label[l + 1] = (l + 1) * B;
    for (int64_t b = 0; b < B; ++b) {
      rows[l * B + b] = b;
      values[l * B + b] = g[b * L + l];
    }
  }
  xmc_fanin_grad_weights_sparse(&layer, x.data(), 0, L, labels.data(), by_label.data(), rows.data(),
                                values.data(), sparse_gw.data(), sparse_gb.data(), nullptr);
  compare("grad_weights_sparse", sparse_gw, gw);
  compare("grad_bias_sparse", sparse_gb, gb);

  for (int kind = 0; kind < 2; ++kind) {
    std::vector<uint8_t> positive(B * L);
    for (auto& p : positive) p = random() % 5 == 0;
    Floats logits = out, part(B * xmc_fanin_loss_parts(L));
    std::vector<double> slope(B * L);
    double value = 0;
    for (int64_t i = 0; i < B * L; ++i) {
      const double y = positive[i] ? 1 : -1, m = y * logits[i], h = m < 1 ? 1 - m : 0;
      value += 0.5 * (kind ? std::log1p(std::exp(-m)) : h * h);
      slope[i] = 0.5 * (kind ? -y / (1 + std::exp(m)) : -2 * y * h);
    }
    xmc_fanin_loss(logits.data(), positive.data(), B, L, kind, 0.5f, part.data(), nullptr);
    float total = 0;
    for (const float p : part) total += p;
    compare("loss gradient", logits, slope);
    compare("loss", {total}, {value});
  }
}

// Equal gains are frequent here, so that labels decide. Every third row is NaN in part.
void check_topk(int64_t rows, int64_t labels, int64_t k, int64_t segment, bool weighted) {
  unsigned state = 11;
  const auto random = [&] {
    return static_cast<float>((state = state * 1664525u + 1013904223u) >> 28) - 8.f;
  };
  const int64_t stride = labels + 3;
  Floats eta((rows - 1) * stride + labels), a(labels), b(labels);
  for (Floats* v : {&eta, &a, &b}) {
    for (float& f : *v) f = random();
  }
  for (int64_t i = 0; i < rows; i += 3) {
    for (int64_t j = 0; j < labels; j += 2) eta[i * stride + j] = std::nanf("");
  }
  const int64_t segments = (labels + segment - 1) / segment,
                kept = std::min<int64_t>(k, xmc::decide::kTopkKept);
  std::vector<uint64_t> keys(rows * k), parts(segments > 1 ? rows * segments * kept : 0);
  Floats gains(rows * k);
  std::vector<int64_t> ids(rows * k);
  const xmc::decide::CudaTopk job{eta.data(),
                                  weighted ? a.data() : nullptr,
                                  weighted ? b.data() : nullptr,
                                  rows,
                                  labels,
                                  stride,
                                  k,
                                  segment,
                                  keys.data(),
                                  parts.data(),
                                  gains.data(),
                                  ids.data()};
  xmc_decide_weighted_topk(&job, nullptr);
  for (int64_t i = 0; i < rows; ++i) {
    const auto gain = [&](int64_t j) {
      return weighted ? a[j] * eta[i * stride + j] + b[j] : eta[i * stride + j];
    };
    std::vector<int64_t> order(labels);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int64_t x, int64_t y) {
      return gain(x) > gain(y) || (std::isnan(gain(y)) && !std::isnan(gain(x)));
    });
    for (int64_t s = 0; s < k; ++s) {
      const float got = gains[i * k + s], want = gain(order[s]);
      if (ids[i * k + s] == order[s] && (got == want || (std::isnan(got) && std::isnan(want)))) continue;
      std::printf("top-k differs in row %d at %d of %d labels\n", int(i), int(s), int(labels));
      failed = true;
      return;
    }
  }
}

void check_mach(int64_t R, int64_t rows, int64_t buckets, int64_t labels, int64_t count) {
  unsigned state = 3;
  Floats p(R * rows * buckets), scores(rows * count);
  for (float& f : p) f = static_cast<float>((state = state * 1664525u + 1013904223u) >> 20) / 4096.f - 0.5f;
  std::vector<uint16_t> table(R * labels);
  for (int64_t r = 0; r < R; ++r) {
    const uint64_t a = 0x9E3779B97F4A7C15ull * (2 * r + 1), b = ~a;
    xmc_mach_hash(a, b, buckets, labels, table.data() + r * labels, nullptr);
    for (int64_t l = 0; l < labels; ++l) {
      if (table[r * labels + l] == ((a * l + b) >> 32) * buckets >> 32) continue;
      std::printf("hash differs at %d\n", int(l));
      failed = true;
      return;
    }
  }
  for (int aggregate = 0; aggregate < 3; ++aggregate) {
    const int64_t first = labels - count;
    const xmc::mach::CudaMach job{p.data(), table.data(), R,     rows,      buckets,
                                  labels,   first,        count, aggregate, scores.data()};
    xmc_mach_scores(&job, nullptr);
    std::vector<double> want;
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t l = first; l < labels; ++l) {
        Floats v;
        for (int64_t r = 0; r < R; ++r) v.push_back(p[(r * rows + i) * buckets + table[r * labels + l]]);
        const double mean = std::accumulate(v.begin(), v.end(), 0.) / R;
        std::sort(v.begin(), v.end());
        const double median = 0.5 * (v[(R - 1) / 2] + double(v[R / 2]));
        want.push_back(aggregate == 0 ? mean : aggregate == 1 ? v[0] : median);
      }
    }
    compare("mach", scores, want);
  }
}

void check_gather(int64_t batch, int64_t width, int64_t dims, int64_t labels) {
  unsigned state = 5;
  const auto random = [&] { return (state = state * 1664525u + 1013904223u) >> 8; };
  Floats h(batch * dims), table(labels * dims), g(batch * width);
  for (Floats* v : {&h, &table, &g}) {
    for (float& f : *v) f = static_cast<float>(random() % 2001) / 1000.f - 1.f;
  }
  std::vector<int64_t> candidates(batch * width), places, starts, order;
  for (int64_t& c : candidates) c = static_cast<int64_t>(random() % (labels + 1)) - 1;
  std::vector<double> scores(batch * width), gh(batch * dims), rows;
  for (int64_t place = 0; place < batch * width; ++place) {
    if (candidates[place] < 0) continue;
    for (int64_t i = 0; i < dims; ++i) {
      const double e = table[candidates[place] * dims + i], x = h[place / width * dims + i];
      scores[place] += x * e;
      gh[place / width * dims + i] += g[place] * e;
    }
  }
  for (int64_t label = 0; label < labels; ++label) {
    const size_t first = places.size();
    std::vector<double> row(dims);
    for (int64_t place = 0; place < batch * width; ++place) {
      if (candidates[place] != label) continue;
      places.push_back(place);
      for (int64_t i = 0; i < dims; ++i) row[i] += g[place] * double{h[place / width * dims + i]};
    }
    if (places.size() == first) continue;
    starts.push_back(static_cast<int64_t>(first));
    rows.insert(rows.end(), row.begin(), row.end());
  }
  const auto n = static_cast<int64_t>(starts.size());
  starts.push_back(static_cast<int64_t>(places.size()));
  const xmc::gather::CudaGatherDot job{batch, width, dims, candidates.data(), h.data(), table.data(), 0, 0};
  Floats got(batch * width);
  xmc_gather_dot(&job, got.data(), nullptr);
  compare("gather dot", got, scores);
  Floats got_h(batch * dims), got_rows(n * dims);
  xmc_gather_dot_grad_h(&job, g.data(), got_h.data(), nullptr);
  compare("gather dot gradient of h", got_h, gh);
  xmc_gather_dot_grad_rows(&job, g.data(), n, starts.data(), places.data(), got_rows.data(), nullptr);
  compare("gather dot gradient of rows", got_rows, rows);
}

}  // namespace

int main() {
  check(1, 1, 1, 1, 1);
  check(65, 40, 33, 33, 1);
  check(64, 50, 45, 7, 8);
  check(3, 9, 31, 9, 3);
  check_topk(1, 1, 1, 1, false);
  check_topk(4, 2050, 5, 2050, true);
  check_topk(2, 3001, 520, 3001, true);  // two passes
  check_topk(3, 1100, 513, 500, true);   // two passes over three segments
  check_topk(2, 2049, 3, 1024, false);
  check_mach(1, 1, 1, 1, 1);
  check_mach(4, 3, 17, 300, 257);
  check_mach(5, 2, 65536, 40, 40);
  check_gather(1, 1, 1, 1);
  check_gather(3, 9, 33, 20);
  check_gather(2, 8, 130, 5);
  std::puts(failed ? "WRONG" : "OK");
  return failed;
}
