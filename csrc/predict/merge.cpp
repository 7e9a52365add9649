#include "predict/merge.h"

#include <algorithm>

#include "core/parallel.h"
#include "core/topk.h"

namespace xmc::predict {

void merge_topk(const std::vector<CsrView<>>& lists, int64_t k, int threads, int32_t* ids, float* scores,
                int32_t* counts) {
  constexpr int64_t kChunk = 256;
  const int64_t rows = lists.empty() ? 0 : lists[0].rows;
  parallel_for(chunk_count(rows, kChunk), threads, [&](int64_t c, int) {
    std::vector<Scored> all;
    for (int64_t i = c * kChunk; i < std::min(rows, (c + 1) * kChunk); ++i) {
      all.clear();
      for (const auto& list : lists) {
        for (int64_t p = list.begin(i); p < list.end(i); ++p) all.push_back({list.data[p], list.indices[p]});
      }
      std::stable_sort(all.begin(), all.end(), [](const Scored& a, const Scored& b) { return a.id < b.id; });
      size_t distinct = 0;
      for (size_t j = 0; j < all.size(); ++j) {
        if (distinct && all[distinct - 1].id == all[j].id) {
          all[distinct - 1].score += all[j].score;
        } else {
          all[distinct++] = all[j];
        }
      }
      const auto given = std::min<int64_t>(k, static_cast<int64_t>(distinct));
      std::partial_sort(all.begin(), all.begin() + given, all.begin() + static_cast<int64_t>(distinct),
                        better);
      for (int64_t j = 0; j < given; ++j) {
        ids[i * k + j] = all[static_cast<size_t>(j)].id;
        scores[i * k + j] = all[static_cast<size_t>(j)].score;
      }
      counts[i] = static_cast<int32_t>(given);
    }
  });
}

}  // namespace xmc::predict
