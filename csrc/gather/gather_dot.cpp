#include "gather/gather_dot.h"

#include <algorithm>
#include <array>
#include <stdexcept>
#include <string>

#include "core/parallel.h"

namespace xmc::gather {
namespace {

constexpr int64_t kCandidates = 256;  // per block of the forward pass
constexpr int64_t kLabels = 64;       // per block of the gradient for E

void check(const GatherDot& s) {
  const int64_t n = s.batch * s.width;
  for (int64_t i = 0; i < n; ++i) {
    if (s.candidates[i] >= s.labels) {
      throw std::invalid_argument("candidates must be below the number of labels " +
                                  std::to_string(s.labels) + ", got " + std::to_string(s.candidates[i]));
    }
  }
}

struct Entry {
  int64_t label, place;  // place: b * width + j
};

// Stable by label, 11 bits at a time.
void sort_by_label(std::vector<Entry>& entries, int64_t labels) {
  constexpr int kBits = 11;
  std::vector<Entry> other(entries.size());
  for (int shift = 0; (labels - 1) >> shift > 0; shift += kBits) {
    std::array<size_t, (1 << kBits) + 1> start{};
    const auto digit = [&](const Entry& e) { return (e.label >> shift) & ((1u << kBits) - 1); };
    for (const Entry& e : entries) ++start[digit(e) + 1];
    for (size_t d = 1; d < start.size(); ++d) start[d] += start[d - 1];
    for (const Entry& e : entries) other[start[digit(e)]++] = e;
    entries.swap(other);
  }
}

}  // namespace

void gather_dot(const GatherDot& s, const float* h, const float* E, float* scores, int threads) {
  check(s);
  const int64_t parts = chunk_count(s.width, kCandidates);
  parallel_for(s.batch * parts, threads, [&](int64_t block, int) {
    const int64_t b = block / parts, first = block % parts * kCandidates;
    const int64_t from = b * s.width + first, n = std::min(kCandidates, s.width - first);
    gather_dot_kernels().dots(h + b * s.dims, E, s.candidates + from, n, s.dims, scores + from);
  });
}

void gather_dot_grad_h(const GatherDot& s, const float* g, const float* E, float* gh, int threads) {
  check(s);
  parallel_for(s.batch, threads, [&](int64_t b, int) {
    const int64_t from = b * s.width;
    gather_dot_kernels().combine(g + from, E, s.candidates + from, s.width, s.dims, gh + b * s.dims);
  });
}

RowGradients gather_dot_grad_rows(const GatherDot& s, const float* g, const float* h, int threads) {
  check(s);
  std::vector<Entry> entries;
  entries.reserve(s.batch * s.width);
  for (int64_t place = 0; place < s.batch * s.width; ++place) {
    if (s.candidates[place] >= 0) entries.push_back({s.candidates[place], place});
  }
  sort_by_label(entries, s.labels);
  RowGradients out;
  std::vector<int64_t> starts, rows(entries.size());
  std::vector<float> values(entries.size());
  for (size_t e = 0; e < entries.size(); ++e) {
    if (e == 0 || entries[e].label != entries[e - 1].label) {
      starts.push_back(static_cast<int64_t>(e));
      out.labels.push_back(entries[e].label);
    }
    rows[e] = entries[e].place / s.width;
    values[e] = g[entries[e].place];
  }
  const auto n = static_cast<int64_t>(out.labels.size());
  starts.push_back(static_cast<int64_t>(entries.size()));
  out.values = Buffer<float>(n * s.dims);
  parallel_for(chunk_count(n, kLabels), threads, [&](int64_t block, int) {
    for (int64_t u = block * kLabels; u < std::min(n, (block + 1) * kLabels); ++u) {
      const int64_t from = starts[u], size = starts[u + 1] - from;
      gather_dot_kernels().combine(values.data() + from, h, rows.data() + from, size, s.dims,
                                   out.values.data() + u * s.dims);
    }
  });
  return out;
}

}  // namespace xmc::gather
