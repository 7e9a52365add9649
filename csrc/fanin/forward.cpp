#include "fanin/block.h"

namespace xmc::fanin {

void forward(const Layer& layer, ConstTensor x, int64_t batch, Tensor out, int threads) {
  check(layer, batch);
  const FaninConvert& convert = fanin_convert();
  const int64_t tile = tile_size();
  const Buffer<float> packed = pack_features(x, batch, layer.features, threads);
  const bool streamed = batch * layer.labels * size_of(out.type) > kStream;
  advise_huge(out.data, batch * layer.labels * size_of(out.type));
  // A block of labels is read once for all tiles; its output tiles go piece by piece from L1 to their place.
  // Rows to be narrowed are staged in long pieces.
  const bool narrowed = out.type != DType::f32, carried = streamed && !narrowed;
  const auto of_groups = [&](int64_t labels) {
    return std::max<int64_t>(1, labels / layer.group) * layer.group;
  };
  const int64_t piece = of_groups(narrowed ? 1024 : 128), step = std::max(piece, 1024 / piece * piece);
  const int64_t run = 4 * step;  // of a thread; its ends may share cache lines of the output with others
  struct Scratch {
    BlockReader reader;
    Buffer<float> z, rows_of_z, carry;
  };
  PerThread<Scratch> scratch(threads, [&] {
    return Scratch{BlockReader(layer), Buffer<float>((piece + 16) * tile),
                   Buffer<float>(narrowed || carried ? (piece + 32) * tile : 0),
                   Buffer<float>(carried ? batch * 16 : 0)};
  });
  // Labels first .. first + labels of a tile; `begins`, `ends`: the first and last piece of the run.
  const auto one_piece = [&](int64_t block, int64_t first, int64_t labels, int64_t t, bool begins, bool ends,
                             Scratch& mine) {
    const int64_t rows = tile_rows(batch, t), row = t * tile;
    const Lists all = mine.reader.lists();
    const int64_t skipped = (first - block) / layer.group * layer.fan_in * (all.bits / 8);
    const Lists lists{static_cast<const char*>(all.data) + skipped, all.bits};
    const float* bias = mine.reader.bias() ? mine.reader.bias() + first - block : nullptr;
    float *z = mine.z.data(), *staged = mine.rows_of_z.data();
    fanin_forward().forward(packed.data() + t * layer.features * tile, lists,
                            mine.reader.weights() + (first - block) * layer.fan_in, bias, labels,
                            layer.fan_in, layer.group, rows, far_tile(layer), t == 0, z);
    if (narrowed) {
      convert.unpack(z, rows, labels, staged, piece);
      for (int64_t r = 0; r < rows; ++r) {
        convert.narrow(staged + r * piece, out.type, labels, at(out, (row + r) * layer.labels + first),
                       streamed);
      }
      return;
    }
    float* place = static_cast<float*>(at(out, row * layer.labels + first));
    if (carried) {
      convert.unpack_streamed(z, rows, labels, place, layer.labels, staged, mine.carry.data() + row * 16,
                              begins, ends);
    } else {
      convert.unpack(z, rows, labels, place, layer.labels);
    }
  };
  parallel_for(chunk_count(layer.labels, run), threads, [&](int64_t chunk, int thread) {
    const int64_t begin = chunk * run, end = std::min(layer.labels, begin + run);
    for (int64_t block = begin; block < end; block += step) {
      const int64_t behind = std::min(block + step, end);
      scratch[thread].reader.read(block, behind - block);
      for (int64_t t = 0; t < tile_count(batch); ++t) {
        for (int64_t first = block; first < behind; first += piece) {
          const int64_t labels = std::min(piece, behind - first);
          one_piece(block, first, labels, t, first == begin, first + labels == end, scratch[thread]);
        }
      }
    }
    if (streamed) convert.fence();
  });
}

}  // namespace xmc::fanin
