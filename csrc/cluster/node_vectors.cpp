#include "cluster/node_vectors.h"

#include <cstddef>

#include "core/prefetch.h"

namespace xmc::cluster {
NodeVectors pick_vectors(const NodeVectors& from, const std::vector<int32_t>& chosen) {
  const CsrView<>& A = from.V;
  std::vector<int32_t> number(A.cols, 0);
  for (size_t k = 0; k < chosen.size(); ++k) {
    if (k + 1 < chosen.size()) prefetch_row(A, chosen[k + 1]);
    for (int64_t e = A.begin(chosen[k]); e < A.end(chosen[k]); ++e) ++number[A.indices[e]];
  }
  NodeVectors to;
  size_t entries = 0;
  for (int32_t& count : number) {
    const bool shared = count >= 2;
    if (shared) {
      entries += count;
      to.count.push_back(count);
    }
    count = shared ? static_cast<int32_t>(to.count.size()) - 1 : -1;
  }
  to.own.resize(chosen.size());
  to.indptr.resize(chosen.size() + 1);
  to.indices = std::make_unique_for_overwrite<int32_t[]>(entries + 1);  // the last is written, not used
  to.values = std::make_unique_for_overwrite<float[]>(entries + 1);
  size_t out = 0;
  for (size_t k = 0; k < chosen.size(); ++k) {
    if (k + 1 < chosen.size()) prefetch_row(A, chosen[k + 1]);
    float own = from.own[chosen[k]];
    for (int64_t e = A.begin(chosen[k]); e < A.end(chosen[k]); ++e) {
      const int32_t feature = number[A.indices[e]];
      const float v = A.data[e];
      const bool shared = feature >= 0;  // no branch: it cannot be predicted
      to.indices[out] = feature;
      to.values[out] = v;
      out += shared;
      own += shared ? 0.f : v * v;
    }
    to.own[k] = own;
    to.indptr[k + 1] = static_cast<int64_t>(out);
  }
  to.V = {static_cast<int64_t>(chosen.size()), static_cast<int64_t>(to.count.size()), to.indptr.data(),
          to.indices.get(), to.values.get()};
  return to;
}

}  // namespace xmc::cluster
