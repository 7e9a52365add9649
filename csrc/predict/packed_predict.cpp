#include <algorithm>
#include <bit>
#include <vector>

#include "core/buffer.h"
#include "core/parallel.h"
#include "core/prefetch.h"
#include "predict/packed.h"
#include "predict/topk_rows.h"

namespace xmc::predict {
namespace {

constexpr int64_t kListsAhead = 8;    // lists of which the first bytes are asked for
constexpr int64_t kRowsAtOnce = 256;  // whose best are kept while the blocks pass by
constexpr int64_t kFewRows = 16;      // of a task, at least

// A list that a row needs.
struct List {
  const uint8_t *from, *to;
  uint32_t width;
  float x;
};

// Memory of one thread.
struct Scratch {
  Buffer<float> score;  // of a block's places, padded to a power of two
  std::vector<List> lists;
  TopKRows top{0, 0};
};

// The lists of block b that row i of x needs, and its scores.
void score_row(const PackedView& m, int64_t b, const CsrView<>& x, int64_t i, const RowOptions& options,
               Scratch& s) {
  const uint32_t* ptr = m.ptr.data() + b * (m.columns + 1);
  const uint8_t* lists = m.list.data() + m.first[b];
  const float scale = row_scale(options, squared_length(x.data + x.begin(i), x.size(i)));
  s.lists.clear();
  for (int64_t f = x.begin(i); f < x.end(i); ++f) {
    const uint32_t* of = ptr + x.indices[f];
    if (of[0] >> 2 < of[1] >> 2) {
      s.lists.push_back({lists + (of[0] >> 2), lists + (of[1] >> 2), of[0] & 3, x.data[f] * scale});
    }
  }
  const PackedKernels& kernels = packed_kernels();
  const int64_t places = m.places(b);
  float* score = s.score.data();
  kernels.start(m.bias.size() ? m.bias.data() + b * kPlaces : nullptr, options.bias, places, score);
  const auto mask = static_cast<uint32_t>(s.score.size() - 1);
  const auto n = s.lists.size();
  for (size_t f = 0; f < n; ++f) {
    if (f + kListsAhead < n) prefetch(s.lists[f + kListsAhead].from);
    const List& list = s.lists[f];
    kernels.add(list.from, list.to, list.width, list.x, m.level.data(), score, mask);
  }
}

// Moves the scores of a block to the best of row `at`.
void keep_best(const PackedView& m, int64_t b, const Calibration& calibration, int64_t at, Scratch& s) {
  const PackedKernels& kernels = packed_kernels();
  const int64_t places = m.places(b), padded = chunk_count(places, kTile) * kTile;
  const int32_t* label = m.label.data() + b * kPlaces;
  float* score = s.score.data();
  if (calibration.scale) {
    kernels.calibrate(calibration.scale + b * kPlaces, calibration.shift + b * kPlaces, padded, score);
  }
  const float& threshold = s.top.thresholds()[at];
  for (int64_t t = 0; (t = kernels.next(score, t, padded, threshold)) < padded; t += kTile) {
    for (int64_t p = t; p < std::min(places, t + kTile); ++p) {
      if (!(score[p] < threshold)) s.top.push(at, {score[p], label[p]});
    }
  }
}

}  // namespace

void predict_packed(const PackedView& m, const CsrView<>& x, const RowOptions& options,
                    const Calibration& calibration, int64_t k, int threads, int32_t* ids, float* scores) {
  k = std::min(k, m.labels);
  if (k <= 0 || x.rows == 0) return;
  const int64_t batch = std::clamp(chunk_count(x.rows, int64_t{4} * threads), kFewRows, kRowsAtOnce);
  const auto places = static_cast<uint64_t>(std::max(m.places(0), kTile));
  std::vector<Scratch> scratch(static_cast<size_t>(threads));
  parallel_for(chunk_count(x.rows, batch), threads, [&](int64_t c, int thread) {
    Scratch& s = scratch[static_cast<size_t>(thread)];
    if (!s.score.size()) s.score = Buffer<float>(static_cast<int64_t>(std::bit_ceil(places)));
    const int64_t from = c * batch, n = std::min(x.rows, from + batch) - from;
    s.top = TopKRows(n, k);
    for (int64_t b = 0; b < m.blocks(); ++b) {
      for (int64_t i = 0; i < n; ++i) {
        score_row(m, b, x, from + i, options, s);
        keep_best(m, b, calibration, i, s);
      }
    }
    for (int64_t i = 0; i < n; ++i) {
      const Scored* best = s.top.sorted(i);
      for (int64_t j = 0; j < k; ++j) {
        ids[(from + i) * k + j] = best[j].id;
        scores[(from + i) * k + j] = best[j].score;
      }
    }
  });
}

}  // namespace xmc::predict
