#include "fanin/block.h"

namespace xmc::fanin {

void grad_features(const Layer& layer, ConstTensor g, int64_t batch, Tensor gx, int threads) {
  check(layer, batch);
  const FaninPasses& passes = fanin_passes();
  FeatureSums sums(layer, batch);
  const int64_t step = block_labels(layer);
  parallel_for(sums.parts(), threads, [&](int64_t part, int) {
    std::vector<float> tile_of_g(static_cast<size_t>(step * kTile)), scratch;
    BlockReader reader(layer);
    const int64_t end = sums.begin(part + 1, step);
    for (int64_t first = sums.begin(part, step); first < end; first += step) {
      const int64_t labels = std::min(step, end - first);
      reader.read(first, labels);
      for (int64_t t = 0; t < tile_count(batch); ++t) {
        const ConstTensor rows{at(g, t * kTile * layer.labels + first), g.type};
        pack_rows(rows, layer.labels, tile_rows(batch, t), labels, scratch, tile_of_g.data());
        passes.grad_features(sums.tile(part, t), reader.offsets(), reader.weights(), tile_of_g.data(),
                             nullptr, labels, layer.fan_in, layer.group);
      }
    }
  });
  sums.store(gx, threads);
}

void grad_weights(const Layer& layer, ConstTensor x, ConstTensor g, int64_t batch, Tensor gw, Tensor gbias,
                  int threads) {
  check(layer, batch);
  const FaninConvert& convert = fanin_convert();
  const FaninPasses& passes = fanin_passes();
  const Buffer<float> packed = pack_features(x, batch, layer.features, threads);
  const int64_t step = block_labels(layer), s = layer.fan_in, x_stride = layer.features * kTile;
  const int64_t tiles_at_once = 4;  // their features stay in L2 for usual sizes
  advise_huge(gw.data, layer.labels * s * size_of(gw.type));
  Layer lists = layer;  // the weights are not read here
  lists.weights = lists.bias = {};
  struct Scratch {
    BlockReader reader;
    Buffer<float> tiles_of_g;
    std::vector<float> widened, sum_w, sum_b;
  };
  PerThread<Scratch> scratch(threads, [&] {
    return Scratch{BlockReader(lists), Buffer<float>(tiles_at_once * step * kTile), {}, {}, {}};
  });
  parallel_for(chunk_count(layer.labels, step), threads, [&](int64_t block, int thread) {
    const int64_t first = block * step, labels = std::min(step, layer.labels - first);
    auto& [reader, tiles_of_g, widened, sum_w, sum_b] = scratch[thread];
    sum_w.assign(static_cast<size_t>(labels * s), 0.f);
    sum_b.assign(static_cast<size_t>(labels), 0.f);
    reader.read(first, labels);
    for (int64_t t = 0; t < tile_count(batch); t += tiles_at_once) {
      const int64_t tiles = std::min(tiles_at_once, tile_count(batch) - t);
      for (int64_t k = 0; k < tiles; ++k) {
        const ConstTensor rows{at(g, (t + k) * kTile * layer.labels + first), g.type};
        pack_rows(rows, layer.labels, tile_rows(batch, t + k), labels, widened,
                  tiles_of_g.data() + k * step * kTile);
      }
      passes.grad_weights(packed.data() + t * x_stride, x_stride, reader.offsets(), tiles_of_g.data(),
                          step * kTile, nullptr, tiles, labels, s, layer.group, sum_w.data(),
                          gbias.data ? sum_b.data() : nullptr);
    }
    convert.narrow(sum_w.data(), gw.type, labels * s, at(gw, first * s), false);
    if (gbias.data) convert.narrow(sum_b.data(), gbias.type, labels, at(gbias, first), false);
  });
}

}  // namespace xmc::fanin
