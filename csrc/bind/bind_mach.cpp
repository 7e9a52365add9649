#include "bind/bind.h"
#include "mach/aggregate.h"
#include "mach/hash.h"

namespace xmc::bind {
namespace {

MachScores scores_view(const Array<float>& p, const Array<uint16_t>& table, int aggregate) {
  if (p.ndim() != 3 || table.ndim() != 2 || p.shape(0) != table.shape(0)) {
    throw std::invalid_argument("p must be R x n x B and table R x L");
  }
  return {p.data(),
          table.data(),
          p.shape(0),
          p.shape(1),
          p.shape(2),
          table.shape(1),
          static_cast<Aggregate>(aggregate)};
}

}  // namespace

void bind_mach(py::module_& m) {
  m.def(
      "mach_table",
      [](uint64_t seed, int64_t repeats, int64_t n_labels, int64_t n_buckets, int threads) {
        Array<uint16_t> table({repeats, n_labels});
        uint16_t* data = table.mutable_data();
        {
          const py::gil_scoped_release release;
          mach_table(seed, repeats, n_labels, n_buckets, threads, data);
        }
        return table;
      },
      py::arg("seed"), py::arg("repeats"), py::arg("n_labels"), py::arg("n_buckets"), py::arg("threads"));
  m.def(
      "bucket_matrix",
      [](int64_t cols, const Array<int64_t>& indptr, const Array<int32_t>& indices, uint64_t seed,
         int64_t repeat, int64_t n_buckets, int threads) {
        const auto Y = csr_view(cols, indptr, indices, Array<float>(0));
        Array<int64_t> starts(Y.rows + 1);
        Array<int32_t> buckets(Y.nnz());
        int64_t *out_starts = starts.mutable_data(), used;
        int32_t* out_buckets = buckets.mutable_data();
        {
          const py::gil_scoped_release release;
          used = bucket_matrix(Y, MachHash(seed, repeat, n_buckets), threads, out_starts, out_buckets);
        }
        return py::make_tuple(starts, buckets, used);
      },
      py::arg("cols"), py::arg("indptr").noconvert(), py::arg("indices").noconvert(), py::arg("seed"),
      py::arg("repeat"), py::arg("n_buckets"), py::arg("threads"));
  m.def(
      "invert_table",
      [](const Array<uint16_t>& table, int64_t n_buckets, int threads) {
        const int64_t repeats = table.shape(0), n_labels = table.shape(1);
        InvertedTable t;
        {
          const py::gil_scoped_release release;
          t = invert_table(table.data(), repeats, n_labels, n_buckets, threads);
        }
        return py::make_tuple(to_numpy(std::move(t.offsets)), to_numpy(std::move(t.labels)));
      },
      py::arg("table").noconvert(), py::arg("n_buckets"), py::arg("threads"));
  m.def(
      "mach_topk",
      [](const Array<float>& p, const Array<uint16_t>& table, int aggregate, int64_t k, int threads) {
        const MachScores in = scores_view(p, table, aggregate);
        Array<int32_t> ids({in.rows, k});
        Array<float> scores({in.rows, k});
        int32_t* out_ids = ids.mutable_data();
        float* out_scores = scores.mutable_data();
        {
          const py::gil_scoped_release release;
          mach_topk(in, k, threads, out_ids, out_scores);
        }
        return py::make_tuple(ids, scores);
      },
      py::arg("p").noconvert(), py::arg("table").noconvert(), py::arg("aggregate"), py::arg("k"),
      py::arg("threads"));
  m.def(
      "mach_topk_candidates",
      [](const Array<float>& p, const Array<uint16_t>& table, const Array<int64_t>& offsets,
         const Array<int32_t>& by_bucket, int aggregate, int64_t m_best, int64_t k, int threads) {
        const MachScores in = scores_view(p, table, aggregate);
        Array<int32_t> ids({in.rows, k});
        Array<float> scores({in.rows, k});
        int32_t* out_ids = ids.mutable_data();
        float* out_scores = scores.mutable_data();
        {
          const py::gil_scoped_release release;
          mach_topk_candidates(in, offsets.data(), by_bucket.data(), m_best, k, threads, out_ids, out_scores);
        }
        return py::make_tuple(ids, scores);
      },
      py::arg("p").noconvert(), py::arg("table").noconvert(), py::arg("offsets").noconvert(),
      py::arg("by_bucket").noconvert(), py::arg("aggregate"), py::arg("m_best"), py::arg("k"),
      py::arg("threads"));
}

}  // namespace xmc::bind
