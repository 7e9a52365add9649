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

constexpr int64_t kRows = 128;  // batch rows at once: their features stay in L2 for usual sizes

// Groups of a multiple of kLanes take g in lanes: calls fn(piece, lanes, moving) for the pieces of labels
// [begin, end), `step` labels and kRows rows each, all rows of a block of labels in turn.
template <class Fn>
void for_pieces(GradientLanes& g, int64_t batch, int64_t begin, int64_t end, int64_t step, const Fn& fn) {
  const auto piece = [&](int64_t first, int64_t row) {
    return Piece{first, std::min(step, end - first), row, std::min(kRows, batch - row)};
  };
  for (int64_t first = begin; first < end; first += step) {
    for (int64_t row = 0; row < batch; row += kRows) {
      const bool same = row + kRows < batch, more = same || first + step < end;
      const Piece now = piece(first, row), next = same ? piece(first, row + kRows) : piece(first + step, 0);
      fn(now, g.get(now, more ? &next : nullptr), g.moving());
    }
  }
}

bool in_lanes(const Layer& layer) {
  return layer.group % kLanes == 0;
}

GradientLanes gradient_lanes(const Layer& layer, ConstTensor g, int64_t batch, int64_t step) {
  return {g, layer.labels, (step + kLanes - 1) / kLanes * kLanes, std::min(kRows, batch)};
}

void grad_features_groups(const Layer& layer, ConstTensor g, int64_t batch, FeatureSums& sums, int threads) {
  const int64_t step = block_labels(layer);
  parallel_for(sums.parts(), threads, [&](int64_t part, int) {
    BlockReader reader(layer);
    GradientLanes lanes = gradient_lanes(layer, g, batch, step);
    for_pieces(lanes, batch, sums.begin(part, step), sums.begin(part + 1, step), step,
               [&](const Piece& piece, const float* g_lanes, Moving* moving) {
                 if (piece.row == 0) reader.read(piece.first, piece.labels);
                 fanin_backward().grad_features_rows(sums.tile(part, piece.row / tile_size()),
                                                     layer.features * tile_size(), reader.lists(),
                                                     reader.weights(), g_lanes, piece.rows, piece.labels,
                                                     layer.fan_in, layer.group, far_tile(layer), moving);
               });
  });
}

void grad_weights_groups(const Layer& layer, const Buffer<float>& x, ConstTensor g, int64_t batch, Tensor gw,
                         Tensor gbias, int threads) {
  const FaninConvert& convert = fanin_convert();
  const int64_t s = layer.fan_in, x_stride = layer.features * tile_size();
  const int64_t step = block_labels(layer), run = 16 * step;
  // Past the caches if it is large. float32 goes to its place at once if it can.
  const bool streamed = layer.labels * s * size_of(gw.type) > kStream;
  const bool lines = fanin_backward().whole_lines && batch <= kRows && s % kLanes == 0 &&
                     reinterpret_cast<uintptr_t>(gw.data) % 64 == 0;
  const bool direct = gw.type == DType::f32 && (lines || !streamed);
  parallel_for(chunk_count(layer.labels, run), threads, [&](int64_t chunk, int) {
    const int64_t begin = chunk * run, end = std::min(layer.labels, begin + run);
    BlockReader reader(layer);
    GradientLanes lanes = gradient_lanes(layer, g, batch, step);
    std::vector<float> sum_w(direct ? 0 : static_cast<size_t>(step * s)), sum_b(static_cast<size_t>(step));
    for_pieces(lanes, batch, begin, end, step, [&](const Piece& piece, const float* g_lanes, Moving* moving) {
      if (piece.row == 0) reader.read(piece.first, piece.labels);
      float* to = direct ? static_cast<float*>(at(gw, piece.first * s)) : sum_w.data();
      const Put put = piece.row > 0 ? Put::add : direct && streamed ? Put::stream : Put::set;
      fanin_backward().grad_weights_rows(x.data() + piece.row / tile_size() * x_stride, x_stride,
                                         reader.lists(), g_lanes, piece.rows, piece.labels, s, layer.group,
                                         far_tile(layer), put, moving, to,
                                         gbias.data ? sum_b.data() : nullptr);
      if (piece.row + piece.rows < batch) return;
      if (!direct) convert.narrow(sum_w.data(), gw.type, piece.labels * s, at(gw, piece.first * s), streamed);
      if (gbias.data) convert.narrow(sum_b.data(), gbias.type, piece.labels, at(gbias, piece.first), false);
    });
    if (streamed) convert.fence();
  });
}

}  // namespace

void grad_features(const Layer& layer, ConstTensor g, int64_t batch, Tensor gx, int threads) {
  check(layer, batch);
  const FaninBackward& passes = fanin_backward();
  FeatureSums sums(layer, batch);
  if (in_lanes(layer) && passes.whole_lines) {
    grad_features_groups(layer, g, batch, sums, threads);
    return sums.store(gx, threads);
  }
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
  const int64_t s = layer.fan_in, x_stride = layer.features * tile_size(), step = block_labels(layer);
  const bool streamed = layer.labels * s * size_of(gw.type) > kStream;
  advise_huge(gw.data, layer.labels * s * size_of(gw.type));
  Layer lists = layer;  // the weights are not read here
  lists.weights = lists.bias = {};
  if (in_lanes(layer) && batch > 0) {
    return grad_weights_groups(lists, packed, g, batch, gw, gbias, threads);
  }
  struct Scratch {
    BlockReader reader;
    Buffer<float> block_of_g;
    std::vector<float> widened, sum_w, sum_b;
  };
  PerThread<Scratch> scratch(threads, [&] {
    return Scratch{BlockReader(lists), Buffer<float>(kRows * (step + kLanes)), {}, {}, {}};
  });
  parallel_for(chunk_count(layer.labels, step), threads, [&](int64_t block, int thread) {
    const int64_t first = block * step, labels = std::min(step, layer.labels - first);
    auto& [reader, block_of_g, widened, sum_w, sum_b] = scratch[thread];
    sum_w.assign(static_cast<size_t>(labels * s), 0.f);
    sum_b.assign(static_cast<size_t>(labels), 0.f);
    reader.read(first, labels);
    float* sum_bias = gbias.data ? sum_b.data() : nullptr;
    for (int64_t row = 0; row < batch; row += kRows) {
      const int64_t rows = std::min(kRows, batch - row);
      const ConstTensor g_rows{at(g, row * layer.labels + first), g.type};
      const float* x_tiles = packed.data() + row / tile_size() * x_stride;
      pack_tiles(g_rows, layer.labels, rows, labels, widened, step * tile_size(), block_of_g.data());
      passes.grad_weights(x_tiles, x_stride, reader.lists(), block_of_g.data(), step * tile_size(), nullptr,
                          tile_count(rows), labels, s, layer.group, sum_w.data(), sum_bias);
    }
    convert.narrow(sum_w.data(), gw.type, labels * s, at(gw, first * s), streamed);
    if (streamed) convert.fence();
    if (gbias.data) convert.narrow(sum_b.data(), gbias.type, labels, at(gbias, first), false);
  });
}

}  // namespace xmc::fanin
