#include "fanin/block.h"

namespace xmc::fanin {

void forward(const Layer& layer, ConstTensor x, int64_t batch, Tensor out, int threads) {
  check(layer, batch);
  const FaninConvert& convert = fanin_convert();
  const FaninPasses& passes = fanin_passes();
  const Buffer<float> packed = pack_features(x, batch, layer.features, threads);
  const int64_t step = block_labels(layer);
  // What the caches can hold is better left there for the next reader.
  const bool streamed = batch * layer.labels * size_of(out.type) > (int64_t{8} << 20);
  advise_huge(out.data, batch * layer.labels * size_of(out.type));
  struct Scratch {
    BlockReader reader;
    Buffer<float> z, rows_of_z;
  };
  PerThread<Scratch> scratch(threads, [&] {
    return Scratch{BlockReader(layer), Buffer<float>(step * kTile), Buffer<float>(step * kTile)};
  });
  parallel_for(chunk_count(layer.labels, step), threads, [&](int64_t block, int thread) {
    const int64_t first = block * step, labels = std::min(step, layer.labels - first);
    auto& [reader, z, rows_of_z] = scratch[thread];
    reader.read(first, labels);
    for (int64_t t = 0; t < tile_count(batch); ++t) {
      const int64_t rows = tile_rows(batch, t);
      passes.forward(packed.data() + t * layer.features * kTile, reader.offsets(), reader.weights(),
                     reader.bias(), labels, layer.fan_in, layer.group, rows, z.data());
      convert.unpack(z.data(), rows, labels, rows_of_z.data(), step);
      for (int64_t r = 0; r < rows; ++r) {
        convert.narrow(rows_of_z.data() + r * step, out.type, labels,
                       at(out, (t * kTile + r) * layer.labels + first), streamed);
      }
    }
    if (streamed) convert.fence();
  });
}

}  // namespace xmc::fanin
