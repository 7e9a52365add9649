#include "knn/recover.h"

#include <algorithm>
#include <vector>

#include "core/parallel.h"
#include "core/topk.h"

namespace xmc::knn {

void recover_labels(const int32_t* neighbours, const float* similarity, int64_t m, int64_t q,
                    CsrView<int32_t, float> Y, int64_t k, int threads, int32_t* labels, float* scores,
                    int64_t* found) {
  constexpr int64_t kChunk = 256;
  struct Scratch {
    std::vector<double> sum;
    std::vector<uint8_t> seen;
    std::vector<int32_t> touched;
  };
  std::vector<Scratch> scratch(std::max(threads, 1));
  parallel_for(chunk_count(m, kChunk), threads, [&](int64_t chunk, int thread) {
    Scratch& s = scratch[thread];
    if (s.sum.empty()) {
      s.sum.assign(Y.cols, 0.0);
      s.seen.assign(Y.cols, 0);
    }
    TopK best(k);
    for (int64_t i = chunk * kChunk; i < std::min(m, (chunk + 1) * kChunk); ++i) {
      s.touched.clear();
      for (int64_t r = 0; r < q && neighbours[i * q + r] >= 0; ++r) {
        const int64_t row = neighbours[i * q + r];
        const double weight = similarity[i * q + r];
        for (int64_t e = Y.begin(row); e < Y.end(row); ++e) {
          const int32_t label = Y.indices[e];
          if (!s.seen[label]) {
            s.seen[label] = 1;
            s.touched.push_back(label);
          }
          s.sum[label] += Y.data ? weight * Y.data[e] : weight;
        }
      }
      best.clear();
      for (const int32_t label : s.touched) {
        best.push({static_cast<float>(s.sum[label]), label});
        s.sum[label] = 0;
        s.seen[label] = 0;
      }
      const auto& sorted = best.sorted();
      found[i] = static_cast<int64_t>(sorted.size());
      for (int64_t r = 0; r < k; ++r) {
        const bool have = r < found[i];
        labels[i * k + r] = have ? sorted[r].id : -1;
        scores[i * k + r] = have ? sorted[r].score : 0.f;
      }
    }
  });
}

}  // namespace xmc::knn
