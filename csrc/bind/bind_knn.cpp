#include "bind/convert.h"
#include "knn/knn.h"
#include "knn/recover.h"

namespace xmc::bind {
using namespace knn;
namespace {

DenseView<float> dense_view(const Array<float>& a, const char* name) {
  if (a.ndim() != 2) throw std::invalid_argument(std::string(name) + " must be two-dimensional");
  return {a.shape(0), a.shape(1), a.data()};
}

py::tuple search(const KnnIndex& index, const Array<float>& queries, int64_t q, int threads) {
  const auto view = dense_view(queries, "queries");
  if (view.cols != index.features()) throw std::invalid_argument("queries: wrong number of columns");
  if (q < 0 || q > index.rows()) throw std::invalid_argument("q must be at most the number of rows");
  return filled<int32_t, float>(
      view.rows, q, [&](int32_t* ids, float* scores) { index.search(view, q, threads, ids, scores); });
}

py::tuple recover(const Array<int32_t>& ids, const Array<float>& similarity, const Csr<>& Y, int64_t k,
                  int threads) {
  if (ids.ndim() != 2 || similarity.ndim() != 2 || ids.shape(0) != similarity.shape(0) ||
      ids.shape(1) != similarity.shape(1)) {
    throw std::invalid_argument("ids and similarity must be matrices of the same shape");
  }
  const int64_t m = ids.shape(0), q = ids.shape(1);
  py::array_t<int64_t> found(m);
  const auto best =
      filled<int32_t, float>(m, k, [&, out = found.mutable_data()](int32_t* labels, float* scores) {
        recover_labels(ids.data(), similarity.data(), m, q, Y, k, threads, labels, scores, out);
      });
  return py::make_tuple(best[0], best[1], found);
}

}  // namespace

void bind_knn(py::module_& m) {
  using py::arg;
  py::class_<KnnIndex>(m, "KnnIndex")
      .def(py::init([](const Array<float>& rows) { return KnnIndex(dense_view(rows, "rows")); }),
           arg("rows").noconvert())
      .def_property_readonly("rows", &KnnIndex::rows)
      .def_property_readonly("features", &KnnIndex::features)
      .def_property_readonly("nbytes", &KnnIndex::bytes)
      .def(py::pickle([](const KnnIndex& i) { return Array<float>({i.rows(), i.features()}, i.values()); },
                      [](const Array<float>& rows) { return KnnIndex(dense_view(rows, "rows")); }))
      .def("search", &search, arg("queries").noconvert(), arg("q"), arg("threads"));
  m.def("recover_labels", &recover, arg("ids").noconvert(), arg("similarity").noconvert(), arg("Y"), arg("k"),
        arg("threads"));
}

}  // namespace xmc::bind
