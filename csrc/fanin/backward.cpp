#include "fanin/block.h"

namespace xmc::fanin {

namespace {

// The connections of a block of labels, ordered by feature (a counting sort).
class ByFeature {
 public:
  // Sorting costs about as much as 64 batch rows save, and a feature must occur often enough in the block.
  static bool pays(const Layer& layer, int64_t batch) {
    return layer.group == 1 && batch > 96 && kLabels * layer.fan_in >= 8 * layer.features &&
           layer.labels >= kLabels;
  }
  static constexpr int64_t kLabels = 512;  // tiles of their gradient stay in L2

  void sort(const BlockReader& reader, int64_t labels, const Layer& layer) {
    const Lists lists = reader.lists();
    if (lists.bits == 16) {
      sort(static_cast<const uint16_t*>(lists.data), reader.weights(), labels, layer);
    } else {
      sort(static_cast<const uint32_t*>(lists.data), reader.weights(), labels, layer);
    }
  }
  const Connection* list() const { return list_.data(); }
  const uint32_t* starts() const { return starts_.data(); }

 private:
  template <class Index>
  void sort(const Index* lists, const float* w, int64_t labels, const Layer& layer) {
    const int64_t n = labels * layer.fan_in;
    const auto tile = static_cast<uint32_t>(tile_size());
    starts_.assign(static_cast<size_t>(layer.features) + 2, 0);
    list_.resize(static_cast<size_t>(n));
    // starts_[d + 2] counts, then starts_[d + 1] runs from the first to behind the last connection of d
    uint32_t* next = starts_.data() + 1;
    for (int64_t i = 0; i < n; ++i) ++next[lists[i] + 1];
    for (int64_t d = 0; d < layer.features; ++d) next[d + 1] += next[d];
    for (uint32_t l = 0; l < labels; ++l) {
      for (int64_t i = 0; i < layer.fan_in; ++i) list_[next[*lists++]++] = {*w++, l * tile};
    }
  }

  std::vector<uint32_t> starts_;
  std::vector<Connection> list_;
};

}  // namespace

void grad_features(const Layer& layer, ConstTensor g, int64_t batch, Tensor gx, int threads) {
  check(layer, batch);
  const FaninBackward& passes = fanin_backward();
  FeatureSums sums(layer, batch);
  const bool sorted = ByFeature::pays(layer, batch);
  const int64_t step = sorted ? ByFeature::kLabels : block_labels(layer, 1024);
  parallel_for(sums.parts(), threads, [&](int64_t part, int) {
    Buffer<float> tile_of_g(step * tile_size());
    std::vector<float> scratch;
    BlockReader reader(layer);
    ByFeature by_feature;
    const int64_t end = sums.begin(part + 1, step);
    for (int64_t first = sums.begin(part, step); first < end; first += step) {
      const int64_t labels = std::min(step, end - first);
      reader.read(first, labels);
      if (sorted) by_feature.sort(reader, labels, layer);
      for (int64_t t = 0; t < tile_count(batch); ++t) {
        const ConstTensor rows{at(g, t * tile_size() * layer.labels + first), g.type};
        pack_tiles(rows, layer.labels, tile_rows(batch, t), labels, scratch, 0, tile_of_g.data());
        if (sorted) {
          passes.grad_features_sorted(sums.tile(part, t), by_feature.list(), by_feature.starts(),
                                      layer.features, tile_of_g.data());
        } else {
          passes.grad_features(sums.tile(part, t), reader.lists(), reader.weights(), tile_of_g.data(),
                               nullptr, labels, layer.fan_in, layer.group, far_tile(layer), t == 0);
        }
      }
    }
  });
  sums.store(gx, threads);
}

void grad_weights(const Layer& layer, ConstTensor x, ConstTensor g, int64_t batch, Tensor gw, Tensor gbias,
                  int threads) {
  check(layer, batch);
  const FaninConvert& convert = fanin_convert();
  const FaninBackward& passes = fanin_backward();
  const Buffer<float> packed = pack_features(x, batch, layer.features, threads);
  const bool in_rows = layer.group % kLanes == 0;
  const int64_t s = layer.fan_in, x_stride = layer.features * tile_size();
  constexpr int64_t rows_at_once = 128;  // their features stay in L2 for usual sizes
  const int64_t step = block_labels(layer, in_rows && batch <= 32 ? 1024 : 256);
  const bool streamed = layer.labels * s * size_of(gw.type) > kStream;
  advise_huge(gw.data, layer.labels * s * size_of(gw.type));
  Layer lists = layer;  // the weights are not read here
  lists.weights = lists.bias = {};
  struct Scratch {
    BlockReader reader;
    Buffer<float> block_of_g;
    std::vector<float> widened, sum_w, sum_b;
  };
  PerThread<Scratch> scratch(threads, [&] {
    return Scratch{BlockReader(lists), Buffer<float>(rows_at_once * (step + kLanes)), {}, {}, {}};
  });
  parallel_for(chunk_count(layer.labels, step), threads, [&](int64_t block, int thread) {
    const int64_t first = block * step, labels = std::min(step, layer.labels - first);
    auto& [reader, block_of_g, widened, sum_w, sum_b] = scratch[thread];
    sum_w.assign(static_cast<size_t>(labels * s), 0.f);
    sum_b.assign(static_cast<size_t>(labels), 0.f);
    reader.read(first, labels);
    float* sum_bias = gbias.data ? sum_b.data() : nullptr;
    for (int64_t row = 0; row < batch; row += rows_at_once) {
      const int64_t rows = std::min(rows_at_once, batch - row);
      const ConstTensor g_rows{at(g, row * layer.labels + first), g.type};
      const float* x_tiles = packed.data() + row / tile_size() * x_stride;
      if (in_rows) {
        const FloatRows from = float_rows(g_rows, layer.labels, rows, labels, widened);
        convert.lanes(from.data, from.stride, rows, labels, block_of_g.data());
        passes.grad_weights_rows(x_tiles, x_stride, reader.lists(), block_of_g.data(), rows, labels, s,
                                 layer.group, far_tile(layer), sum_w.data(), sum_bias);
      } else {
        pack_tiles(g_rows, layer.labels, rows, labels, widened, step * tile_size(), block_of_g.data());
        passes.grad_weights(x_tiles, x_stride, reader.lists(), block_of_g.data(), step * tile_size(), nullptr,
                            tile_count(rows), labels, s, layer.group, sum_w.data(), sum_bias);
      }
    }
    convert.narrow(sum_w.data(), gw.type, labels * s, at(gw, first * s), streamed);
    if (streamed) convert.fence();
    if (gbias.data) convert.narrow(sum_b.data(), gbias.type, labels, at(gbias, first), false);
  });
}

}  // namespace xmc::fanin
