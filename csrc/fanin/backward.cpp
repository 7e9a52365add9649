#include "fanin/block.h"

namespace xmc::fanin {

namespace {

// The connections of a block of labels, ordered by feature (a counting sort).
class ByFeature {
 public:
  static bool pays(const Layer& layer, int64_t batch) {
    return layer.group == 1 && batch > kSortedBatch &&
           kSortedLabels * layer.fan_in >= kSortedUses * layer.features && layer.labels >= kSortedLabels;
  }

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
    starts_.assign(layer.features + 2, 0);
    list_.resize(n);
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

// Groups of a multiple of kLanes take g in lanes: calls fn(piece, lanes, copy) for the pieces of labels
// [begin, end), `step` labels and kRows rows each, all rows of a block of labels one after the other.
template <class Fn>
void for_pieces(GradientLanes& g, int64_t batch, int64_t begin, int64_t end, int64_t step, const Fn& fn) {
  const auto piece = [&](int64_t first, int64_t row) {
    return Piece{first, std::min(step, end - first), row, std::min(kRows, batch - row)};
  };
  for (int64_t first = begin; first < end; first += step) {
    for (int64_t row = 0; row < batch; row += kRows) {
      const bool same = row + kRows < batch, more = same || first + step < end;
      const Piece now = piece(first, row), next = same ? piece(first, row + kRows) : piece(first + step, 0);
      fn(now, g.get(now, more ? &next : nullptr), g.copy());
    }
  }
}

bool in_lanes(const Layer& layer, ConstTensor g) {
  return layer.group % kLanes == 0 && g.order == Order::rows;
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
               [&](const Piece& piece, const float* g_lanes, LaneCopy* copy) {
                 if (piece.row == 0) reader.read(piece.first, piece.labels);
                 fanin_backward().grad_features_rows(sums.tile(part, piece.row / tile_size()),
                                                     layer.features * tile_size(), reader.lists(),
                                                     reader.weights(), g_lanes, piece.rows, piece.labels,
                                                     layer.fan_in, layer.group, far_tile(layer), copy);
               });
  });
}

void grad_weights_groups(const Layer& layer, const Buffer<float>& x, ConstTensor g, int64_t batch, Tensor gw,
                         Tensor gbias, int threads) {
  const FaninConvert& convert = fanin_convert();
  const int64_t s = layer.fan_in, x_stride = layer.features * tile_size();
  const int64_t step = block_labels(layer), run = 16 * step;
  // Past the caches if it is large. float32 goes to its place at once if it can.
  const bool streamed = layer.labels * s * size_of(gw.type) > kStreamBytes;
  const bool lines = fanin_backward().whole_lines && batch <= kRows && s % kLanes == 0 &&
                     reinterpret_cast<uintptr_t>(gw.data) % 64 == 0;
  const bool direct = gw.type == DType::f32 && (lines || !streamed);
  parallel_for(chunk_count(layer.labels, run), threads, [&](int64_t chunk, int) {
    const int64_t begin = chunk * run, end = std::min(layer.labels, begin + run);
    BlockReader reader(layer);
    GradientLanes lanes = gradient_lanes(layer, g, batch, step);
    std::vector<float> sum_w(direct ? 0 : step * s), sum_b(step);
    for_pieces(lanes, batch, begin, end, step, [&](const Piece& piece, const float* g_lanes, LaneCopy* copy) {
      if (piece.row == 0) reader.read(piece.first, piece.labels);
      float* to = direct ? static_cast<float*>(at(gw, piece.first * s)) : sum_w.data();
      const Put put = piece.row > 0 ? Put::add : direct && streamed ? Put::stream : Put::set;
      fanin_backward().grad_weights_rows(x.data() + piece.row / tile_size() * x_stride, x_stride,
                                         reader.lists(), g_lanes, piece.rows, piece.labels, s, layer.group,
                                         far_tile(layer), put, copy, to, gbias.data ? sum_b.data() : nullptr);
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
  const bool sorted = ByFeature::pays(layer, batch);
  const auto [tile, stay, step] = sorted ? Walk{tile_size(), kSortedLabels, kSortedLabels}
                                         : plain_walk(layer, block_labels(layer, kFeatureLabels));
  FeatureSums sums(layer, batch, tile);
  if (in_lanes(layer, g) && passes.whole_lines) {
    grad_features_groups(layer, g, batch, sums, threads);
    return sums.store(gx, threads);
  }
  // Of a float32 matrix (labels, batch) whole tiles are used where they are. Sorted ones are read more often
  // and copied: lines a power of two apart share their place in L1.
  const bool columns = g.order == Order::columns, in_place = columns && g.type == DType::f32 && !sorted;
  const bool at_once = columns && !in_place && stay == step;  // all tiles of a block
  const int64_t tiles = tile_count(batch, tile), g_step = step * tile;
  parallel_for(sums.parts(), threads, [&](int64_t part, int) {
    Buffer<float> tiles_of_g(at_once ? tiles * g_step : g_step);
    std::vector<float> scratch;
    BlockReader reader(layer);
    ByFeature by_feature;
    // Labels first .. first + labels in tile t, which may be the first one to see them.
    const auto block = [&](int64_t first, int64_t labels, int64_t t) {
      if (t == 0 || stay > step) reader.read(first, labels);
      if (t == 0 && sorted) {
        reader.accept(fanin_convert().below(reader.lists(), labels * layer.fan_in, layer.features));
        by_feature.sort(reader, labels, layer);
      }
      const int64_t row = t * tile, rows = tile_rows(batch, t, tile);
      const bool there = in_place && rows == tile;
      const float* g_tile = tiles_of_g.data();
      if (there) {
        g_tile = static_cast<const float*>(at(g, first * batch + row));
      } else if (t == 0 || !at_once) {
        pack_tiles(g, batch, layer.labels, {first, labels, row, at_once ? batch : rows}, scratch, tile,
                   g_step, tiles_of_g.data());
      }
      if (at_once) g_tile += t * g_step;
      if (sorted) {
        passes.grad_features_sorted(sums.tile(part, t), by_feature.list(), by_feature.starts(),
                                    layer.features, g_tile);
      } else {
        reader.accept(passes.grad_features(sums.tile(part, t), tile, reader.lists(), reader.weights(), g_tile,
                                           there ? batch : tile, nullptr, labels, layer.fan_in, layer.group,
                                           far_tile(layer), t == 0 || stay > step,
                                           t == 0 ? layer.features : 0));
      }
    };
    const int64_t end = sums.begin(part + 1, step);
    for (int64_t start = sums.begin(part, step); start < end; start += stay) {
      for (int64_t t = 0; t < tiles; ++t) {
        for (int64_t first = start; first < std::min(end, start + stay); first += step) {
          block(first, std::min(step, end - first), t);
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
  const bool streamed = layer.labels * s * size_of(gw.type) > kStreamBytes;
  advise_huge(gw.data, layer.labels * s * size_of(gw.type));
  Layer lists = layer;  // the weights are not read here
  lists.weights = lists.bias = {};
  if (in_lanes(layer, g) && batch > 0) {
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
    sum_w.assign(labels * s, 0.f);
    sum_b.assign(labels, 0.f);
    reader.read(first, labels);
    float* sum_bias = gbias.data ? sum_b.data() : nullptr;
    for (int64_t row = 0; row < batch; row += kRows) {
      const int64_t rows = std::min(kRows, batch - row);
      const float* x_tiles = packed.data() + row / tile_size() * x_stride;
      pack_tiles(g, batch, layer.labels, {first, labels, row, rows}, widened, tile_size(), step * tile_size(),
                 block_of_g.data());
      reader.accept(passes.grad_weights(x_tiles, x_stride, reader.lists(), block_of_g.data(),
                                        step * tile_size(), nullptr, tile_count(rows), labels, s, layer.group,
                                        row == 0 ? layer.features : 0, sum_w.data(), sum_bias));
    }
    convert.narrow(sum_w.data(), gw.type, labels * s, at(gw, first * s), streamed);
    if (streamed) convert.fence();
    if (gbias.data) convert.narrow(sum_b.data(), gbias.type, labels, at(gbias, first), false);
  });
}

}  // namespace xmc::fanin
