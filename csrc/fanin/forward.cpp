#include "fanin/block.h"

namespace xmc::fanin {

void forward(const Layer& layer, ConstTensor x, int64_t batch, Tensor out, int threads) {
  check(layer, batch);
  const FaninConvert& convert = fanin_convert();
  const FaninForward& passes = fanin_forward();
  const bool streamed = batch * layer.labels * size_of(out.type) > kStream;
  advise_huge(out.data, batch * layer.labels * size_of(out.type));
  // A block of labels is read once for all tiles; its output goes piece by piece through rows in L1 to its
  // place. Rows to be narrowed are staged in long pieces.
  const bool columns = out.order == Order::columns, narrowed = out.type != DType::f32;
  const bool carried = streamed && !narrowed && !columns;
  const bool lanes = layer.group % kLanes == 0 && !columns;
  const auto of_groups = [&](int64_t labels) {
    return std::max<int64_t>(1, labels / layer.group) * layer.group;
  };
  const int64_t piece = of_groups(narrowed && !columns ? 1024 : lanes ? 256 : 128);
  const auto [tile, stay, step] =  // a piece of the weights is turned for all tiles
      plain_walk(layer, lanes ? piece : std::max(piece, 1024 / piece * piece), std::max<int64_t>(piece, 256));
  // Of a thread; its ends may share cache lines of the output with others.
  const int64_t run = std::max(stay, 4 * step);
  const int64_t width = (piece + 15) / 16 * 16 + 16;  // of a staged row: room for a carried line before it
  const int64_t tiles = tile_count(batch, tile);
  const Buffer<float> packed = pack_features(x, batch, layer.features, threads, tile);
  struct Scratch {
    BlockReader reader;
    Buffer<float> z, staged, turned, carry;
  };
  PerThread<Scratch> scratch(threads, [&] {
    return Scratch{BlockReader(layer), Buffer<float>(lanes ? 0 : piece * tile), Buffer<float>(width * tile),
                   Buffer<float>(lanes ? width * layer.fan_in : 0), Buffer<float>(carried ? batch * 16 : 0)};
  });
  // Labels first .. first + labels of a tile; `begins`, `ends`: the first and last piece of the run.
  const auto one_piece = [&](int64_t block, int64_t first, int64_t labels, int64_t t, bool begins, bool ends,
                             Scratch& mine) {
    const int64_t rows = tile_rows(batch, t, tile), row = t * tile, s = layer.fan_in;
    const Lists all = mine.reader.lists();
    const int64_t skipped = (first - block) / layer.group * s * (all.bits / 8);
    const Lists lists{static_cast<const char*>(all.data) + skipped, all.bits};
    const float* bias = mine.reader.bias() ? mine.reader.bias() + first - block : nullptr;
    const float *x_tile = packed.data() + row * layer.features,
                *w = mine.reader.weights() + (first - block) * s;
    float *staged = mine.staged.data(), *z = mine.z.data();
    if (lanes) {
      if (t == 0) passes.turn(w, labels, s, mine.turned.data());
      passes.forward_rows(x_tile, lists, mine.turned.data(), bias, labels, s, layer.group, rows,
                          far_tile(layer), staged + 16, width);
    } else {
      mine.reader.accept(passes.forward(x_tile, tile, lists, w, bias, labels, s, layer.group, rows,
                                        far_tile(layer), t == 0 || stay > step, t == 0 ? layer.features : 0,
                                        z));
    }
    if (columns && !narrowed) {
      return convert.unpack_columns(z, tile, rows, labels, static_cast<float*>(at(out, first * batch + row)),
                                    batch, streamed);
    }
    for (int64_t l = 0; columns && l < labels; ++l) {
      convert.narrow(z + l * tile, out.type, rows, at(out, (first + l) * batch + row), false);
    }
    if (columns) return;
    if (!lanes) convert.unpack(z, tile, rows, labels, staged + 16, width);
    if (carried) {
      convert.stream_rows(staged, width, rows, labels,
                          static_cast<float*>(at(out, row * layer.labels + first)), layer.labels,
                          mine.carry.data() + row * 16, begins, ends);
      return;
    }
    for (int64_t r = 0; r < rows; ++r) {
      convert.narrow(staged + r * width + 16, out.type, labels, at(out, (row + r) * layer.labels + first),
                     streamed);
    }
  };
  parallel_for(chunk_count(layer.labels, run), threads, [&](int64_t chunk, int thread) {
    const int64_t begin = chunk * run, end = std::min(layer.labels, begin + run);
    Scratch& mine = scratch[thread];
    for (int64_t start = begin; start < end; start += stay) {
      for (int64_t t = 0; t < tiles; ++t) {
        for (int64_t block = start; block < std::min(start + stay, end); block += step) {
          const int64_t behind = std::min(block + step, end);
          if (t == 0 || stay > step) mine.reader.read(block, behind - block);
          for (int64_t first = block; first < behind; first += piece) {
            const int64_t labels = std::min(piece, behind - first);
            one_piece(block, first, labels, t, first == begin, first + labels == end, mine);
          }
        }
      }
    }
    if (streamed) convert.fence();
  });
}

}  // namespace xmc::fanin
