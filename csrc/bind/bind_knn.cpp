#include "bind/bind.h"
#include "knn/knn.h"
#include "knn/recover.h"

namespace xmc::bind {
namespace {

DenseView<float> dense_view(const Array<float>& a, const char* name) {
  if (a.ndim() != 2) throw std::invalid_argument(std::string(name) + " must be two-dimensional");
  return {a.shape(0), a.shape(1), a.data()};
}

py::tuple search(const KnnIndex& index, const Array<float>& queries, int64_t q, int threads) {
  const auto view = dense_view(queries, "queries");
  if (view.cols != index.features()) throw std::invalid_argument("queries: wrong number of columns");
  if (q < 0 || q > index.rows()) throw std::invalid_argument("q must be at most the number of rows");
  py::array_t<int32_t> ids({view.rows, q});
  py::array_t<float> scores({view.rows, q});
  int32_t* ids_out = ids.mutable_data();
  float* scores_out = scores.mutable_data();
  {
    const py::gil_scoped_release release;
    index.search(view, q, threads, ids_out, scores_out);
  }
  return py::make_tuple(ids, scores);
}

py::tuple recover(const Array<int32_t>& ids, const Array<float>& similarity, int64_t n_labels,
                  const Array<int64_t>& indptr, const Array<int32_t>& indices, const Array<float>& data,
                  int64_t k, int threads) {
  if (ids.ndim() != 2 || similarity.ndim() != 2 || ids.shape(0) != similarity.shape(0) ||
      ids.shape(1) != similarity.shape(1)) {
    throw std::invalid_argument("ids and similarity must be matrices of the same shape");
  }
  const auto Y = csr_view(n_labels, indptr, indices, data);
  const int64_t m = ids.shape(0), q = ids.shape(1);
  py::array_t<int32_t> labels({m, k});
  py::array_t<float> scores({m, k});
  py::array_t<int64_t> found(m);
  int32_t* labels_out = labels.mutable_data();
  float* scores_out = scores.mutable_data();
  int64_t* found_out = found.mutable_data();
  {
    const py::gil_scoped_release release;
    recover_labels(ids.data(), similarity.data(), m, q, Y, k, threads, labels_out, scores_out, found_out);
  }
  return py::make_tuple(labels, scores, found);
}

}  // namespace

void bind_knn(py::module_& m) {
  py::class_<KnnIndex>(m, "KnnIndex")
      .def(py::init([](const Array<float>& rows) { return KnnIndex(dense_view(rows, "rows")); }),
           py::arg("rows").noconvert())
      .def_property_readonly("rows", &KnnIndex::rows)
      .def_property_readonly("features", &KnnIndex::features)
      .def_property_readonly("nbytes", &KnnIndex::bytes)
      .def("search", &search, py::arg("queries").noconvert(), py::arg("q"), py::arg("threads"));
  m.def("recover_labels", &recover, py::arg("ids").noconvert(), py::arg("similarity").noconvert(),
        py::arg("n_labels"), py::arg("indptr").noconvert(), py::arg("indices").noconvert(),
        py::arg("data").noconvert(), py::arg("k"), py::arg("threads"));
}

}  // namespace xmc::bind
