#include "fanin/block.h"

namespace xmc::fanin {

void forward(const Layer& layer, ConstTensor x, int64_t batch, Tensor out, int threads) {
  check(layer, batch);
  const FaninConvert& convert = fanin_convert();
  const FaninPasses& passes = fanin_passes();
  const Buffer<float> packed = pack_features(x, batch, layer.features, threads);
  const bool streamed = batch * layer.labels * size_of(out.type) > kStream;
  advise_huge(out.data, batch * layer.labels * size_of(out.type));
  // Output tiles go from L1 straight to their place. Rows that are streamed and start inside a cache line are
  // put together line by line, rows to be narrowed in long pieces.
  constexpr int64_t kLine = 64, kDirect = 512, kStaged = 1024;
  const bool narrowed = out.type != DType::f32;
  const int64_t part = std::max<int64_t>(1, (narrowed ? kStaged : kDirect) / layer.group) * layer.group;
  const bool aligned = reinterpret_cast<uintptr_t>(out.data) % kLine == 0 && layer.labels * 4 % kLine == 0 &&
                       part * 4 % kLine == 0;
  const bool carried = !narrowed && streamed && !aligned;
  const int64_t step = std::max(part, (carried ? 4 * kStaged : kStaged) / part * part);
  struct Scratch {
    BlockReader reader;
    Buffer<float> z, rows_of_z, carry;
  };
  PerThread<Scratch> scratch(threads, [&] {
    return Scratch{BlockReader(layer), Buffer<float>((part + 16) * kTile),
                   Buffer<float>(narrowed || carried ? (part + 32) * kTile : 0),
                   Buffer<float>(carried ? batch * 16 : 0)};
  });
  const auto one_tile = [&](int64_t first, int64_t labels, int64_t t, bool begins, bool ends, Scratch& mine) {
    const int64_t rows = tile_rows(batch, t), row = t * kTile;
    float* z = mine.z.data();
    passes.forward(packed.data() + t * layer.features * kTile, mine.reader.offsets(), mine.reader.weights(),
                   mine.reader.bias(), labels, layer.fan_in, layer.group, rows, z);
    if (narrowed) {
      convert.unpack(z, rows, labels, mine.rows_of_z.data(), part, false);
      for (int64_t r = 0; r < rows; ++r) {
        convert.narrow(mine.rows_of_z.data() + r * part, out.type, labels,
                       at(out, (row + r) * layer.labels + first), streamed);
      }
      return;
    }
    float* place = static_cast<float*>(at(out, row * layer.labels + first));
    if (carried) {
      convert.unpack_carried(z, rows, labels, place, layer.labels, mine.rows_of_z.data(),
                             mine.carry.data() + row * 16, begins, ends);
    } else {
      convert.unpack(z, rows, labels, place, layer.labels, streamed);
    }
  };
  parallel_for(chunk_count(layer.labels, step), threads, [&](int64_t block, int thread) {
    const int64_t begin = block * step, end = std::min(layer.labels, begin + step);
    for (int64_t first = begin; first < end; first += part) {
      const int64_t labels = std::min(part, end - first);
      scratch[thread].reader.read(first, labels);
      for (int64_t t = 0; t < tile_count(batch); ++t) {
        one_tile(first, labels, t, first == begin, first + labels == end, scratch[thread]);
      }
    }
    if (streamed) convert.fence();
  });
}

}  // namespace xmc::fanin
