#include <algorithm>
#include <limits>
#include <vector>

#include "core/parallel.h"
#include "core/topk.h"
#include "mach/aggregate.h"

namespace xmc::mach {
void mach_topk_candidates(const MachScores& in, const int64_t* offsets, const int32_t* by_bucket, int64_t m,
                          int64_t k, int threads, int32_t* ids, float* scores) {
  check_topk(in, k);
  struct Scratch {
    std::vector<int32_t> seen;  // the last row that looked at the label, plus 1
    std::vector<float> values, order;
  };
  std::vector<Scratch> scratch(std::max(threads, 1));
  m = std::min(m, in.buckets);
  parallel_for(in.rows, threads, [&](int64_t row, int thread) {
    Scratch& own = scratch[thread];
    own.seen.resize(in.labels, 0);
    own.values.resize(in.repeats);
    own.order.resize(in.repeats);
    TopK best(k);
    const auto tag = static_cast<int32_t>(row + 1);
    for (int64_t r = 0; r < in.repeats; ++r) {
      const float* p = in.p + (r * in.rows + row) * in.buckets;
      TopK top(m);
      for (int64_t b = 0; b < in.buckets; ++b) {
        if (!top.full() || p[b] > top.threshold()) top.push({p[b], static_cast<int32_t>(b)});
      }
      for (const Scored& bucket : top.sorted()) {
        const int64_t* range = offsets + r * (in.buckets + 1) + bucket.id;
        for (int64_t e = range[0]; e < range[1]; ++e) {
          const int32_t label = by_bucket[e];
          if (own.seen[label] == tag) continue;
          own.seen[label] = tag;
          best.push({score_of(in, row, label, own.values.data(), own.order.data()), label});
        }
      }
    }
    const auto& sorted = best.sorted();
    for (int64_t j = 0; j < k; ++j) {
      const bool have = j < static_cast<int64_t>(sorted.size());
      ids[row * k + j] = have ? sorted[j].id : -1;
      scores[row * k + j] = have ? sorted[j].score : -std::numeric_limits<float>::infinity();
    }
  });
}

}  // namespace xmc::mach
