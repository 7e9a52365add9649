#include "bind/convert.h"
#include "mach/aggregate.h"
#include "mach/hash.h"

namespace xmc::bind {
using namespace mach;
namespace {

MachScores scores_view(const Array<float>& p, const Array<uint16_t>& table, int aggregate) {
  if (p.ndim() != 3 || table.ndim() != 2 || p.shape(0) != table.shape(0)) {
    throw std::invalid_argument("p must be R x n x B and table R x L");
  }
  const auto kind = static_cast<Aggregate>(aggregate);
  return {p.data(), table.data(), p.shape(0), p.shape(1), p.shape(2), table.shape(1), kind};
}

py::tuple topk(const Array<float>& p, const Array<uint16_t>& table, int aggregate, int64_t k, int threads) {
  const MachScores in = scores_view(p, table, aggregate);
  return filled<int32_t, float>(in.rows, k,
                                [&](int32_t* ids, float* scores) { mach_topk(in, k, threads, ids, scores); });
}

py::tuple topk_candidates(const Array<float>& p, const Array<uint16_t>& table, const Array<int64_t>& offsets,
                          const Array<int32_t>& by_bucket, int aggregate, int64_t m_best, int64_t k,
                          int threads) {
  const MachScores in = scores_view(p, table, aggregate);
  return filled<int32_t, float>(in.rows, k, [&](int32_t* ids, float* scores) {
    mach_topk_candidates(in, offsets.data(), by_bucket.data(), m_best, k, threads, ids, scores);
  });
}

py::array hash_table(uint64_t seed, int64_t repeats, int64_t n_labels, int64_t n_buckets, int threads) {
  return filled<uint16_t>(repeats, n_labels, [&](uint16_t* table) {
    mach_table(seed, repeats, n_labels, n_buckets, threads, table);
  })[0];
}

py::tuple buckets(const Csr<>& Y, uint64_t seed, int64_t repeat, int64_t n_buckets, int threads) {
  Array<int64_t> starts(Y.view.rows + 1);
  Array<int32_t> buckets(Y.view.nnz());
  const int64_t used = without_gil([&, s = starts.mutable_data(), b = buckets.mutable_data()] {
    return bucket_matrix(Y, MachHash(seed, repeat, n_buckets), threads, s, b);
  });
  return py::make_tuple(starts, buckets, used);
}

py::tuple by_bucket(const Array<uint16_t>& table, int64_t n_buckets, int threads) {
  const int64_t repeats = table.shape(0), n_labels = table.shape(1);
  auto t = without_gil([&] { return invert_table(table.data(), repeats, n_labels, n_buckets, threads); });
  return py::make_tuple(to_numpy(std::move(t.offsets)), to_numpy(std::move(t.labels)));
}

}  // namespace

void bind_mach(py::module_& m) {
  using py::arg;
  m.def("mach_table", &hash_table, arg("seed"), arg("repeats"), arg("n_labels"), arg("n_buckets"),
        arg("threads"));
  m.def("bucket_matrix", &buckets, arg("Y"), arg("seed"), arg("repeat"), arg("n_buckets"), arg("threads"));
  m.def("invert_table", &by_bucket, arg("table").noconvert(), arg("n_buckets"), arg("threads"));
  m.def("mach_topk", &topk, arg("p").noconvert(), arg("table").noconvert(), arg("aggregate"), arg("k"),
        arg("threads"));
  m.def("mach_topk_candidates", &topk_candidates, arg("p").noconvert(), arg("table").noconvert(),
        arg("offsets").noconvert(), arg("by_bucket").noconvert(), arg("aggregate"), arg("m_best"), arg("k"),
        arg("threads"));
}

}  // namespace xmc::bind
