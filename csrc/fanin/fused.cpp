// The fused passes: the logits of one block of labels at a time, used up in cache.
#include <cmath>
#include <limits>

#include "fanin/block.h"

namespace xmc::fanin {
namespace {

struct Positive {
  int32_t label, row;
};

// The entries of the targets, ordered by label.
std::vector<Positive> by_label(const CsrView<>& targets, int64_t labels) {
  std::vector<Positive> list;
  list.reserve(targets.nnz());
  for (int64_t b = 0; b < targets.rows; ++b) {
    for (int64_t e = targets.begin(b); e < targets.end(b); ++e) {
      if (targets.indices[e] < 0 || targets.indices[e] >= labels) {
        throw std::invalid_argument("a column of targets is not a label");
      }
      list.push_back({targets.indices[e], static_cast<int32_t>(b)});
    }
  }
  std::sort(list.begin(), list.end(), [](const Positive& a, const Positive& b) {
    return a.label != b.label ? a.label < b.label : a.row < b.row;
  });
  return list;
}

// The logits of one block for the whole batch, [tile][label][tile_size()].
void block_logits(const Layer& layer, const BlockReader& reader, const Buffer<float>& packed, int64_t batch,
                  int64_t labels, int64_t step, float* z) {
  for (int64_t t = 0; t < tile_count(batch); ++t) {
    reader.accept(fanin_forward().forward(packed.data() + t * layer.features * tile_size(), tile_size(),
                                          reader.lists(), reader.weights(), reader.bias(), labels,
                                          layer.fan_in, layer.group, tile_rows(batch, t), far_tile(layer),
                                          t == 0, t == 0 ? layer.features : 0, z + t * step * tile_size()));
  }
}

}  // namespace

double loss_and_gradients(const Layer& layer, ConstTensor x, int64_t batch, const CsrView<>& targets,
                          Loss loss, float scale, Tensor gx, Tensor gw, Tensor gbias, int threads) {
  check(layer, batch);
  const FaninConvert& convert = fanin_convert();
  const FaninBackward& passes = fanin_backward();
  const FaninLoss& losses = fanin_loss();
  const int64_t tiles = tile_count(batch), step = block_labels(layer), s = layer.fan_in;
  const int64_t x_stride = layer.features * tile_size(), z_stride = step * tile_size();
  const Buffer<float> packed = pack_features(x, batch, layer.features, threads);
  const std::vector<Positive> positives = by_label(targets, layer.labels);
  FeatureSums sums(layer, gx.data ? batch : 0);
  if (gw.data) advise_huge(gw.data, layer.labels * s * size_of(gw.type));

  struct Scratch {
    BlockReader reader;
    Buffer<float> z, sign, valid;
    std::vector<uint8_t> active;
    std::vector<float> sum_w, sum_b;
  };
  PerThread<Scratch> scratch(threads, [&] {
    Scratch made{BlockReader(layer),
                 Buffer<float>(tiles * z_stride),
                 Buffer<float>(tiles * z_stride),
                 Buffer<float>(tiles * tile_size()),
                 {},
                 {},
                 {}};
    std::fill_n(made.sign.data(), tiles * z_stride, -1.f);
    std::fill_n(made.valid.data(), batch, 1.f);
    made.active.resize(tiles * step);
    return made;
  });

  // A part of the labels owns a sum for gx; without gx every block is a part.
  const int64_t parts = gx.data ? sums.parts() : chunk_count(layer.labels, step);
  std::vector<double> totals(parts, 0.0);
  const auto one_block = [&](int64_t part, int64_t first, int64_t labels, Scratch& mine) {
    mine.reader.read(first, labels);
    block_logits(layer, mine.reader, packed, batch, labels, step, mine.z.data());
    auto p = std::lower_bound(positives.begin(), positives.end(), first,
                              [](const Positive& a, int64_t l) { return a.label < l; });
    const auto end = std::lower_bound(p, positives.end(), first + labels,
                                      [](const Positive& a, int64_t l) { return a.label < l; });
    const auto mark = [&](float value) {
      for (auto q = p; q != end; ++q) {
        mine.sign[q->row / tile_size() * z_stride + (q->label - first) * tile_size() + q->row % tile_size()] =
            value;
      }
    };
    mark(1.f);
    double total = 0;
    for (int64_t t = 0; t < tiles; ++t) {
      uint8_t* active = mine.active.data() + t * labels;
      float* z = mine.z.data() + t * z_stride;
      total += losses.loss(loss, z, mine.sign.data() + t * z_stride, mine.valid.data() + t * tile_size(),
                           labels, scale, active);
      if (gx.data) {
        passes.grad_features(sums.tile(part, t), tile_size(), mine.reader.lists(), mine.reader.weights(), z,
                             tile_size(), active, labels, s, layer.group, far_tile(layer), t == 0, 0);
      }
    }
    mark(-1.f);
    if (gw.data || gbias.data) {
      mine.sum_w.assign(labels * s, 0.f);
      mine.sum_b.assign(labels, 0.f);
      passes.grad_weights(packed.data(), x_stride, mine.reader.lists(), mine.z.data(), z_stride,
                          mine.active.data(), tiles, labels, s, layer.group, 0, mine.sum_w.data(),
                          mine.sum_b.data());
      if (gw.data) convert.narrow(mine.sum_w.data(), gw.type, labels * s, at(gw, first * s), false);
      if (gbias.data) convert.narrow(mine.sum_b.data(), gbias.type, labels, at(gbias, first), false);
    }
    totals[part] += total;
  };
  parallel_for(parts, threads, [&](int64_t part, int thread) {
    const int64_t begin = gx.data ? sums.begin(part, step) : part * step;
    const int64_t end = gx.data ? sums.begin(part + 1, step) : std::min(layer.labels, begin + step);
    for (int64_t first = begin; first < end; first += step) {
      one_block(part, first, std::min(step, end - first), scratch[thread]);
    }
  });
  if (gx.data) sums.store(gx, threads);
  double total = 0;
  for (const double t : totals) total += t;
  return total;
}

void topk(const Layer& layer, ConstTensor x, int64_t batch, int64_t k, float* scores, int32_t* ids,
          int threads) {
  check(layer, batch);
  if (k < 0 || k > layer.labels) throw std::invalid_argument("k must be in [0, labels]");
  if (k == 0 || batch == 0) return;
  constexpr float kOpen = -std::numeric_limits<float>::infinity();
  const FaninLoss& losses = fanin_loss();
  const int64_t tiles = tile_count(batch), step = block_labels(layer);
  const Buffer<float> packed = pack_features(x, batch, layer.features, threads);

  struct Scratch {
    BlockReader reader;
    Buffer<float> z, threshold;
    std::vector<uint8_t> open;  // per tile: some row still takes anything (not full, or holds NaN or -inf)
    std::vector<TopK>
        best;  // of the labels this thread has seen; the order is total, so who saw what is free
  };
  PerThread<Scratch> scratch(threads, [&] {
    Scratch made{BlockReader(layer),
                 Buffer<float>(tiles * step * tile_size()),
                 Buffer<float>(tiles * tile_size()),
                 {},
                 {}};
    made.best.assign(batch, TopK(k));
    // a row past the batch never enters
    std::fill_n(made.threshold.data(), tiles * tile_size(), std::numeric_limits<float>::infinity());
    std::fill_n(made.threshold.data(), batch, kOpen);
    made.open.assign(tiles, 1);
    return made;
  });
  parallel_for(chunk_count(layer.labels, step), threads, [&](int64_t block, int thread) {
    const int64_t first = block * step, labels = std::min(step, layer.labels - first);
    Scratch& mine = scratch[thread];
    mine.reader.read(first, labels);
    block_logits(layer, mine.reader, packed, batch, labels, step, mine.z.data());
    for (int64_t t = 0; t < tiles; ++t) {
      const int64_t rows = tile_rows(batch, t);
      float* threshold = mine.threshold.data() + t * tile_size();
      for (int64_t l = 0; l < labels; ++l) {
        const float* z = mine.z.data() + (t * step + l) * tile_size();
        uint32_t mask = mine.open[t] ? ~0u : losses.above(z, threshold);
        if (!mask) continue;
        for (int64_t r = 0; mask && r < rows; ++r, mask >>= 1) {
          if (!(mask & 1)) continue;
          TopK& best = mine.best[t * tile_size() + r];
          best.push({z[r], static_cast<int32_t>(first + l)});
          threshold[r] = best.threshold();
        }
        mine.open[t] = std::count(threshold, threshold + rows, kOpen) > 0;
      }
    }
  });
  parallel_for(batch, batch * k > 10'000 ? threads : 1, [&](int64_t b, int) {
    TopK all(k);
    for (int t = 0; t < std::max(threads, 1); ++t) {
      for (const Scored& scored : scratch[t].best[b].sorted()) all.push(scored);
    }
    const std::vector<Scored>& sorted = all.sorted();
    for (int64_t j = 0; j < k; ++j) {
      scores[b * k + j] = sorted[j].score;
      ids[b * k + j] = sorted[j].id;
    }
  });
}

}  // namespace xmc::fanin
