#include <optional>

#include "bind/bind.h"
#include "linear/train.h"

namespace xmc::bind {
using namespace linear;
namespace {

template <class T, class Get>
py::array_t<T> column(const std::vector<LabelReport>& reports, const Get& get) {
  std::vector<T> values;
  values.reserve(reports.size());
  for (const LabelReport& r : reports) values.push_back(static_cast<T>(get(r)));
  return to_numpy(std::move(values));
}

py::dict report_columns(const std::vector<LabelReport>& reports) {
  py::dict out;
  out["status"] = column<int32_t>(reports, [](const LabelReport& r) { return r.status; });
  out["outer_iterations"] = column<int32_t>(reports, [](const LabelReport& r) { return r.outer_iterations; });
  out["inner_iterations"] = column<int32_t>(reports, [](const LabelReport& r) { return r.inner_iterations; });
  out["active_rows"] = column<int64_t>(reports, [](const LabelReport& r) { return r.active_rows; });
  out["objective"] = column<double>(reports, [](const LabelReport& r) { return r.objective; });
  out["gradient_norm"] = column<double>(reports, [](const LabelReport& r) { return r.gradient_norm; });
  out["seconds"] = column<double>(reports, [](const LabelReport& r) { return r.seconds; });
  return out;
}

}  // namespace

void bind_linear(py::module_& m) {
  m.def(
      "linear_train",
      [](const Array<int64_t>& x_indptr, const Array<int32_t>& x_indices, const Array<float>& x_data,
         int64_t n_features, const Array<float>& x_dense, bool normalize, std::optional<float> bias,
         const Array<int64_t>& y_indptr, const Array<int32_t>& y_indices, const Array<float>& cost_positive,
         const Array<int64_t>& warm_indptr, const Array<int32_t>& warm_indices, const Array<float>& warm_data,
         const Array<int64_t>& blocks, int solver, int loss, int init, double C, double tol, int max_iter,
         uint64_t seed, float threshold, int64_t keep_top, int threads, const py::function& on_block) {
        LinearProblem p;
        if (x_dense.shape(0)) {  // its rows: a matrix without columns has no size
          p.X_dense = {x_dense.shape(0), x_dense.shape(1), x_dense.data()};
        } else {
          p.X = csr_view(n_features, x_indptr, x_indices, x_data);
        }
        p.rows = {normalize, bias.has_value(), bias.value_or(0.f)};
        p.positives = csr_view(p.n(), y_indptr, y_indices, Array<float>());
        p.C = C;
        p.tol = tol;
        p.max_iter = max_iter;
        p.seed = seed;
        if (cost_positive.size()) p.cost_positive = cost_positive.data();
        std::vector<LabelBlock> list;
        for (py::ssize_t b = 0; b + 1 < blocks.size(); b += 2) {
          list.push_back({blocks.data()[b], blocks.data()[b + 1]});
        }
        TrainOptions options{static_cast<SolverKind>(solver), static_cast<Loss>(loss),
                             static_cast<InitRule>(init),     {},
                             {threshold, keep_top},           threads};
        if (warm_indptr.size() > 1) options.warm = csr_view(p.D(), warm_indptr, warm_indices, warm_data);
        std::vector<NodePlacement> placement;
        {
          const py::gil_scoped_release release;
          placement = train(p, options, list, [&](int64_t block, SolvedBlock&& solved) {
            const py::gil_scoped_acquire gil;
            on_block(block, to_numpy(std::move(solved.indptr)), to_numpy(std::move(solved.indices)),
                     to_numpy(std::move(solved.values)), report_columns(solved.reports));
          });
        }
        return placement_list(placement);
      },
      py::arg("x_indptr").noconvert(), py::arg("x_indices").noconvert(), py::arg("x_data").noconvert(),
      py::arg("n_features"), py::arg("x_dense").noconvert(), py::arg("normalize"), py::arg("bias"),
      py::arg("y_indptr").noconvert(), py::arg("y_indices").noconvert(), py::arg("cost_positive").noconvert(),
      py::arg("warm_indptr").noconvert(), py::arg("warm_indices").noconvert(),
      py::arg("warm_data").noconvert(), py::arg("blocks").noconvert(), py::arg("solver"), py::arg("loss"),
      py::arg("init"), py::arg("C"), py::arg("tol"), py::arg("max_iter"), py::arg("seed"),
      py::arg("threshold"), py::arg("keep_top"), py::arg("threads"), py::arg("on_block"));
}

}  // namespace xmc::bind
