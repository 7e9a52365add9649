// out = layer(x). The walk, from the outside in:
//
//   run      labels of one thread; its ends may share cache lines of `out` with other threads
//   stay     labels that one tile of x works on before the next tile does
//   block    labels whose weights are read together
//   piece    labels whose outputs are in L1 on their way from the kernel to their place in `out`
//
// Usually stay = block: all tiles work on a block, so that weights come from memory once. A tile too large for
// L2 stays for many blocks instead (Walk in block.h).
#include "fanin/block.h"

namespace xmc::fanin {
namespace {

class Forward {
 public:
  Forward(const Layer& layer, ConstTensor x, int64_t batch, Tensor out, int threads)
      : layer_(layer), batch_(batch), out_(out), piece_(whole_groups(piece_labels())), walk_(walk()) {
    // A staged row has room for a cache line that the piece to the left left over, see stream_rows.
    width_ = (piece_ + 15) / 16 * 16 + 16;
    packed_ = pack_features(x, batch, layer.features, threads, walk_.tile);
    advise_huge(out.data, bytes());
  }

  void run(int threads) {
    PerThread<Scratch> scratch(threads, [&] { return make_scratch(); });
    const int64_t labels = std::max(walk_.stay, 4 * walk_.step);
    parallel_for(chunk_count(layer_.labels, labels), threads, [&](int64_t chunk, int thread) {
      const int64_t begin = chunk * labels;
      one_run(begin, std::min(layer_.labels, begin + labels), scratch[thread]);
      if (streamed_) fanin_convert().fence();
    });
  }

 private:
  struct Scratch {
    BlockReader reader;
    Buffer<float> z, staged, carry;
  };
  // Labels first .. first + labels of a block, in tile t.
  struct Place {
    int64_t block, first, labels, t;
    bool begins, ends;  // the first, the last piece of the run
  };

  int64_t bytes() const { return batch_ * layer_.labels * size_of(out_.type); }
  int64_t whole_groups(int64_t labels) const {
    return std::max<int64_t>(1, labels / layer_.group) * layer_.group;
  }
  int64_t piece_labels() const { return narrowed_ && !columns_ ? kPieceNarrowed : kPiece; }
  Walk walk() const {
    const int64_t block = std::max(piece_, kForwardLabels / piece_ * piece_);
    return plain_walk(layer_, block, std::max(piece_, kBlockLabels));
  }
  // Whether tile t has to read the weights of a block itself.
  bool reads(int64_t t) const { return t == 0 || walk_.stay > walk_.step; }

  Scratch make_scratch() const {
    return {BlockReader(layer_), Buffer<float>(piece_ * walk_.tile), Buffer<float>(width_ * walk_.tile),
            Buffer<float>(carried_ ? batch_ * 16 : 0)};
  }

  void one_run(int64_t begin, int64_t end, Scratch& mine) const {
    for (int64_t start = begin; start < end; start += walk_.stay) {
      for (int64_t t = 0; t < tile_count(batch_, walk_.tile); ++t) {
        for (int64_t block = start; block < std::min(start + walk_.stay, end); block += walk_.step) {
          const int64_t behind = std::min(block + walk_.step, end);
          if (reads(t)) mine.reader.read(block, behind - block);
          for (int64_t first = block; first < behind; first += piece_) {
            const int64_t labels = std::min(piece_, behind - first);
            const Place place{block, first, labels, t, first == begin, first + labels == end};
            compute(place, mine);
            columns_ ? write_columns(place, mine) : write_rows(place, mine);
          }
        }
      }
    }
  }

  // Logits of a piece, z [label][row].
  void compute(const Place& p, Scratch& mine) const {
    const int64_t s = layer_.fan_in, skipped = p.first - p.block;  // labels of the block before the piece
    const Lists all = mine.reader.lists();
    const Lists lists{static_cast<const char*>(all.data) + skipped / layer_.group * s * (all.bits / 8),
                      all.bits};
    const float* bias = mine.reader.bias() ? mine.reader.bias() + skipped : nullptr;
    const float* w = mine.reader.weights() + skipped * s;
    const float* x = packed_.data() + p.t * walk_.tile * layer_.features;
    const int64_t rows = tile_rows(batch_, p.t, walk_.tile);
    const int64_t check_below = p.t == 0 ? layer_.features : 0;  // once is enough
    mine.reader.accept(fanin_forward().forward(x, walk_.tile, lists, w, bias, p.labels, s, layer_.group, rows,
                                               far_tile(layer_), reads(p.t), check_below, mine.z.data()));
  }

  // z is in the order of (labels, batch) already.
  void write_columns(const Place& p, const Scratch& mine) const {
    const FaninConvert& convert = fanin_convert();
    const int64_t row = p.t * walk_.tile, rows = tile_rows(batch_, p.t, walk_.tile);
    if (!narrowed_) {
      auto* to = static_cast<float*>(at(out_, p.first * batch_ + row));
      return convert.unpack_columns(mine.z.data(), walk_.tile, rows, p.labels, to, batch_, streamed_);
    }
    for (int64_t l = 0; l < p.labels; ++l) {
      convert.narrow(mine.z.data() + l * walk_.tile, out_.type, rows, at(out_, (p.first + l) * batch_ + row),
                     false);
    }
  }

  // z is transposed into staged rows, these go to `out`.
  void write_rows(const Place& p, Scratch& mine) const {
    const FaninConvert& convert = fanin_convert();
    const int64_t row = p.t * walk_.tile, rows = tile_rows(batch_, p.t, walk_.tile);
    float* staged = mine.staged.data();
    convert.unpack(mine.z.data(), walk_.tile, rows, p.labels, staged + 16, width_);
    if (carried_) {
      auto* to = static_cast<float*>(at(out_, row * layer_.labels + p.first));
      return convert.stream_rows(staged, width_, rows, p.labels, to, layer_.labels,
                                 mine.carry.data() + row * 16, p.begins, p.ends);
    }
    for (int64_t r = 0; r < rows; ++r) {
      convert.narrow(staged + r * width_ + 16, out_.type, p.labels,
                     at(out_, (row + r) * layer_.labels + p.first), streamed_);
    }
  }

  const Layer& layer_;
  const int64_t batch_;
  const Tensor out_;
  const bool columns_ = out_.order == Order::columns;
  const bool narrowed_ = out_.type != DType::f32;
  const bool streamed_ = bytes() > kStreamBytes;
  const bool carried_ = streamed_ && !narrowed_ && !columns_;  // whole cache lines past the caches
  const int64_t piece_;
  const Walk walk_;
  int64_t width_ = 0;  // floats of a staged row
  Buffer<float> packed_;
};

}  // namespace

void forward(const Layer& layer, ConstTensor x, int64_t batch, Tensor out, int threads) {
  check(layer, batch);
  Forward(layer, x, batch, out, threads).run(threads);
}

}  // namespace xmc::fanin
