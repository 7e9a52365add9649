#include "linear/postings.h"

#include <algorithm>
#include <cmath>

#include "linear/tail_tuning.h"

namespace xmc::linear {
namespace {

constexpr float kLevels = 255;
constexpr float kUp = 1.0001f;  // more than rounding can take away

bool indexable(const PreparedFeatures& X) {
  if (X.dense || X.bias <= 0 || X.n < kManyRows || X.n > Postings::kMaxRows) return false;
  if (X.values.size() > kShortRows * X.n) return false;  // padded
  return std::all_of(X.values.data(), X.values.data() + X.values.size(), [](float v) { return v >= 0; });
}

}  // namespace

Postings make_postings(const PreparedFeatures& X) {
  Postings out;
  if (!indexable(X)) return out;
  out.begin.assign(X.width + 1, 0);
  float largest = 0;
  for (int64_t i = 0; i < X.n; ++i) {
    for_entries(X, i, [&](int64_t j, float v) {
      ++out.begin[j + 1];
      largest = std::max(largest, v);
    });
    out.longest = std::max(out.longest, kUp * std::sqrt(X.rows[i].norm2));
    out.most_entries = std::max(out.most_entries, X.rows[i].head + X.rows[i].tail);
  }
  while (out.frequent < X.width && out.begin[out.frequent + 1] * kFrequentShare > X.n) ++out.frequent;
  for (int64_t j = 0; j < X.width; ++j) out.begin[j + 1] += out.begin[j];
  out.unit = largest * kUp / kLevels;
  out.entries = Buffer<uint32_t>(out.begin.back());
  out.frequent_norm = Buffer<float>(X.n);
  std::vector<int64_t> next(out.begin.begin(), out.begin.end() - 1);
  for (int64_t i = 0; i < X.n; ++i) {
    double norm2 = 0;
    for_entries(X, i, [&](int64_t j, float v) {
      const auto level = static_cast<uint32_t>(std::min(kLevels, std::ceil(v / out.unit)));
      out.entries[next[j]++] = static_cast<uint32_t>(i) << Postings::kLevelBits | level;
      if (j < out.frequent) norm2 += static_cast<double>(v) * v;
    });
    out.frequent_norm[i] = kUp * static_cast<float>(std::sqrt(norm2));
  }
  return out;
}

std::vector<MemoryRange> memory_of(const Postings& postings) {
  return {{postings.entries.data(), static_cast<size_t>(postings.entries.size()) * sizeof(uint32_t)}};
}

}  // namespace xmc::linear
