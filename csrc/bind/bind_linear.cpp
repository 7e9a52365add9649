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
  out["gap"] = column<double>(reports, [](const LabelReport& r) { return r.gap; });
  out["seconds"] = column<double>(reports, [](const LabelReport& r) { return r.seconds; });
  return out;
}

LinearProblem problem_of(const Array<int64_t>& x_indptr, const Array<int32_t>& x_indices,
                         const Array<float>& x_data, int64_t n_features, const Array<float>& x_dense,
                         bool normalize, std::optional<float> bias, const Array<int64_t>& y_indptr,
                         const Array<int32_t>& y_indices, const Array<float>& cost_positive) {
  LinearProblem p;
  if (x_dense.shape(0)) {  // its rows: a matrix without columns has no size
    p.X_dense = {x_dense.shape(0), x_dense.shape(1), x_dense.data()};
  } else {
    p.X = csr_view(n_features, x_indptr, x_indices, x_data);
  }
  p.rows = {normalize, bias.has_value(), bias.value_or(0.f)};
  p.positives = csr_view(p.n(), y_indptr, y_indices, Array<float>());
  if (cost_positive.size()) p.cost_positive = cost_positive.data();
  return p;
}

}  // namespace

void bind_linear(py::module_& m) {
  m.def(
      "linear_train",
      [](const Array<int64_t>& x_indptr, const Array<int32_t>& x_indices, const Array<float>& x_data,
         int64_t n_features, const Array<float>& x_dense, bool normalize, std::optional<float> bias,
         const Array<int64_t>& y_indptr, const Array<int32_t>& y_indices, const Array<float>& cost_positive,
         const Array<int64_t>& warm_indptr, const Array<int32_t>& warm_indices, const Array<float>& warm_data,
         const Array<int64_t>& alpha_indptr, const Array<int32_t>& alpha_rows, const Array<float>& alpha,
         const Array<float>& bias_weights, const Array<double>& old_objective, int64_t old_rows,
         bool keep_multipliers, const Array<int64_t>& blocks, int solver, int loss, int init, double C,
         double tol, int max_iter, uint64_t seed, float threshold, int64_t keep_top, float bias_threshold,
         int threads, const py::function& on_block) {
        LinearProblem p = problem_of(x_indptr, x_indices, x_data, n_features, x_dense, normalize, bias,
                                     y_indptr, y_indices, cost_positive);
        p.C = C;
        p.tol = tol;
        p.max_iter = max_iter;
        p.seed = seed;
        std::vector<LabelBlock> list;
        for (py::ssize_t b = 0; b + 1 < blocks.size(); b += 2) {
          list.push_back({blocks.data()[b], blocks.data()[b + 1]});
        }
        TrainOptions options;
        options.solver = static_cast<SolverKind>(solver);
        options.loss = static_cast<Loss>(loss);
        options.init = static_cast<InitRule>(init);
        options.prune = {threshold, keep_top, bias_threshold};
        options.threads = threads;
        options.keep_multipliers = keep_multipliers;
        options.old_rows = old_rows;
        if (bias_weights.size()) {
          options.old = {csr_view(p.n(), alpha_indptr, alpha_rows, alpha), bias_weights.data(),
                         old_objective.data()};
        }
        if (warm_indptr.size() > 1) options.warm = csr_view(p.D(), warm_indptr, warm_indices, warm_data);
        std::vector<NodePlacement> placement;
        {
          const py::gil_scoped_release release;
          placement = train(p, options, list, [&](int64_t block, SolvedBlock&& solved) {
            const py::gil_scoped_acquire gil;
            py::dict report = report_columns(solved.reports);
            if (keep_multipliers) {
              report["alpha_indptr"] = to_numpy(std::move(solved.alpha_indptr));
              report["alpha_rows"] = to_numpy(std::move(solved.alpha_rows));
              report["alpha"] = to_numpy(std::move(solved.alpha));
              report["bias_weight"] = to_numpy(std::move(solved.bias_weights));
            }
            on_block(block, to_numpy(std::move(solved.indptr)), to_numpy(std::move(solved.indices)),
                     to_numpy(std::move(solved.values)), report);
          });
        }
        return placement_list(placement);
      },
      py::arg("x_indptr").noconvert(), py::arg("x_indices").noconvert(), py::arg("x_data").noconvert(),
      py::arg("n_features"), py::arg("x_dense").noconvert(), py::arg("normalize"), py::arg("bias"),
      py::arg("y_indptr").noconvert(), py::arg("y_indices").noconvert(), py::arg("cost_positive").noconvert(),
      py::arg("warm_indptr").noconvert(), py::arg("warm_indices").noconvert(),
      py::arg("warm_data").noconvert(), py::arg("alpha_indptr").noconvert(),
      py::arg("alpha_rows").noconvert(), py::arg("alpha").noconvert(), py::arg("bias_weights").noconvert(),
      py::arg("old_objective").noconvert(), py::arg("old_rows"), py::arg("keep_multipliers"),
      py::arg("blocks").noconvert(), py::arg("solver"), py::arg("loss"), py::arg("init"), py::arg("C"),
      py::arg("tol"), py::arg("max_iter"), py::arg("seed"), py::arg("threshold"), py::arg("keep_top"),
      py::arg("bias_threshold"), py::arg("threads"), py::arg("on_block"));
}

}  // namespace xmc::bind
