#include "fanin/block.h"

#include <string>

namespace xmc::fanin {

void check(const Layer& layer, int64_t batch) {
  const auto require = [](bool ok, const char* what, int64_t got) {
    if (!ok) throw std::invalid_argument(std::string(what) + ", got " + std::to_string(got));
  };
  require(batch >= 0, "batch must be >= 0", batch);
  require(layer.labels >= 0, "labels must be >= 0", layer.labels);
  require(layer.group >= 1, "group_size must be >= 1", layer.group);
  require(layer.features >= 1 && layer.features <= kMaxFeatures, "features must be in [1, 2^26]",
          layer.features);
  require(layer.fan_in >= 1 && layer.fan_in <= layer.features, "fan_in must be in [1, features]",
          layer.fan_in);
  require(layer.index_bits == 16 || layer.index_bits == 32, "indices must have 16 or 32 bits",
          layer.index_bits);
  if (layer.index_bits == 16) {
    require(layer.features <= 65536, "16-bit indices need features <= 65536", layer.features);
  }
}

FloatRows float_rows(ConstTensor x, int64_t stride, int64_t rows, int64_t cols, std::vector<float>& scratch) {
  if (x.type == DType::f32) return {static_cast<const float*>(x.data), stride};
  scratch.resize(rows * cols);
  for (int64_t r = 0; r < rows; ++r) {
    fanin_convert().widen(at(x, r * stride), x.type, cols, scratch.data() + r * cols);
  }
  return {scratch.data(), cols};
}

void pack_tiles(ConstTensor g, int64_t batch, int64_t labels, const Piece& piece, std::vector<float>& scratch,
                int64_t tile, int64_t step, float* tiles) {
  const FaninConvert& convert = fanin_convert();
  if (g.order == Order::columns) {
    const FloatRows from = float_rows({at(g, piece.first * batch + piece.row), g.type}, batch, piece.labels,
                                      piece.rows, scratch);
    return convert.pack_columns(from.data, from.stride, piece.rows, piece.labels, tile, step, tiles);
  }
  for (int64_t t = 0; t < tile_count(piece.rows, tile); ++t, tiles += step) {
    const int64_t row = piece.row + t * tile, rows = tile_rows(piece.rows, t, tile);
    const FloatRows from =
        float_rows({at(g, row * labels + piece.first), g.type}, labels, rows, piece.labels, scratch);
    convert.pack(from.data, from.stride, rows, piece.labels, tile, tiles);
  }
}

Buffer<float> pack_features(ConstTensor x, int64_t batch, int64_t features, int threads, int64_t tile) {
  const int64_t tiles = tile_count(batch, tile);
  Buffer<float> packed(tiles * features * tile);
  parallel_for(tiles, batch * features > 100'000 ? threads : 1, [&](int64_t t, int) {
    std::vector<float> scratch;
    const Piece all{0, features, t * tile, tile_rows(batch, t, tile)};
    pack_tiles(x, batch, features, all, scratch, tile, 0, packed.data() + t * features * tile);
  });
  return packed;
}

GradientLanes::GradientLanes(ConstTensor g, int64_t stride, int64_t labels, int64_t rows)
    : g_(g), stride_(stride), now_(labels * rows), next_(labels * rows) {}

void GradientLanes::start(const Piece& piece) {
  coming_ = piece;
  copy_ = {};
  if (g_.type != DType::f32 || piece.labels % kLanes) return;
  const float* from = static_cast<const float*>(at(g_, piece.row * stride_ + piece.first));
  copy_.from = from;
  copy_.stride = stride_;
  copy_.rows = piece.rows;
  copy_.lines = piece.labels / kLanes;
  copy_.to = next_.data();
  copy_.warm = std::min(piece.rows, std::max<int64_t>(1, kCopyAhead / copy_.lines));
  copy_.next_block = from + piece.labels;
  copy_.ahead = copy_.warm == piece.rows ? copy_.next_block : from + copy_.warm * stride_;
}

const float* GradientLanes::get(const Piece& piece, const Piece* next) {
  if (!(coming_ == piece)) start(piece);
  if (copy_.from) {
    fanin_convert().finish(&copy_);
  } else {
    const FloatRows from = float_rows({at(g_, piece.row * stride_ + piece.first), g_.type}, stride_,
                                      piece.rows, piece.labels, widened_);
    fanin_convert().lanes(from.data, from.stride, piece.rows, piece.labels, next_.data());
  }
  std::swap(now_, next_);
  copy_ = {};
  coming_ = {};
  if (next) start(*next);
  return now_.data();
}

void BlockReader::read(int64_t first, int64_t labels) {
  const FaninConvert& convert = fanin_convert();
  const int64_t s = layer_.fan_in, group = first / layer_.group;
  const int64_t n = (labels + layer_.group - 1) / layer_.group * s;
  lists_ = {static_cast<const char*>(layer_.indices) + group * s * (layer_.index_bits / 8),
            layer_.index_bits};
  first_ = first;
  labels_ = labels;
  if (layer_.group > 1) accept(convert.below(lists_, n, layer_.features));
  const auto widened = [&](ConstTensor t, int64_t from, int64_t count, std::vector<float>& scratch) {
    if (!t.data) return static_cast<const float*>(nullptr);
    if (t.type == DType::f32) return static_cast<const float*>(t.data) + from;
    scratch.resize(count);
    convert.widen(at(t, from), t.type, count, scratch.data());
    return static_cast<const float*>(scratch.data());
  };
  weights_ = widened(layer_.weights, first * s, labels * s, weight_scratch_);
  bias_ = widened(layer_.bias, first, labels, bias_scratch_);
}

void BlockReader::accept(bool below) const {
  if (below) return;
  throw std::invalid_argument("indices must be below the number of features " +
                              std::to_string(layer_.features) + "; a row of labels " +
                              std::to_string(first_) + ".." + std::to_string(first_ + labels_ - 1) +
                              " is not");
}

namespace {

// Parts of a sum over labels: adding them up must stay a small share of the work (labels * s >=
// kSumShare * parts * features), and they must not take much memory.
int64_t sum_parts(const Layer& layer, int64_t floats) {
  const int64_t affordable = layer.labels * layer.fan_in / (kSumShare * layer.features);
  return std::clamp<int64_t>(std::min(affordable, kSumBytes / std::max<int64_t>(4 * floats, 1)), 1,
                             kSumParts);
}

}  // namespace

FeatureSums::FeatureSums(const Layer& layer, int64_t batch, int64_t tile)
    : batch_(batch),
      features_(layer.features),
      labels_(layer.labels),
      tile_(tile),
      parts_(sum_parts(layer, tile_count(batch, tile) * tile * layer.features)),
      memory_(parts_ * tile_count(batch, tile) * tile * layer.features * int64_t{sizeof(float)}),
      sums_(static_cast<float*>(memory_.data())) {
  std::fill_n(sums_, parts_ * tile_count(batch, tile) * tile * features_, 0.f);
}

int64_t FeatureSums::begin(int64_t part, int64_t step) const {
  return std::min(labels_, chunk_count(labels_, step) * part / parts_ * step);
}

void FeatureSums::store(Tensor gx, int threads) {
  const FaninConvert& convert = fanin_convert();
  const int64_t tiles = tile_count(batch_, tile_), floats = features_ * tile_;
  parallel_for(tiles, batch_ * features_ * parts_ > 100'000 ? threads : 1, [&](int64_t t, int) {
    float* total = tile(0, t);
    for (int64_t p = 1; p < parts_; ++p) {
      const float* part = tile(p, t);
      for (int64_t i = 0; i < floats; ++i) total[i] += part[i];
    }
    const int64_t rows = tile_rows(batch_, t, tile_);
    if (gx.type == DType::f32) {
      convert.unpack(total, tile_, rows, features_, static_cast<float*>(at(gx, t * tile_ * features_)),
                     features_);
      return;
    }
    std::vector<float> scratch(rows * features_);
    convert.unpack(total, tile_, rows, features_, scratch.data(), features_);
    convert.narrow(scratch.data(), gx.type, rows * features_, at(gx, t * tile_ * features_), false);
  });
}

}  // namespace xmc::fanin
