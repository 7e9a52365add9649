#include "bind/bind.h"
#include "core/parallel.h"
#include "linear/l1.h"
#include "linear/newton.h"

namespace xmc::bind {
namespace {

using Csr = CsrView<int32_t, float>;

Csr positives_view(int64_t n, const Array<int64_t>& indptr, const Array<int32_t>& indices) {
  return csr_view<int32_t, float>(n, indptr, indices, Array<float>());
}

// Weights as CSR arrays and reports as columns.
py::tuple result(LabelWeights&& weights, const std::vector<LabelReport>& reports) {
  py::list rows;
  for (const LabelReport& r : reports) {
    rows.append(py::make_tuple(static_cast<int>(r.status), r.outer_iterations, r.inner_iterations,
                               r.active_rows, r.objective, r.gradient_norm, r.seconds));
  }
  return py::make_tuple(to_numpy(std::move(weights.indptr)), to_numpy(std::move(weights.indices)),
                        to_numpy(std::move(weights.values)), rows);
}

struct Arrays {
  int64_t features;
  Array<int64_t> x_indptr;
  Array<int32_t> x_indices;
  Array<float> x_data, x_dense;
  Array<int64_t> y_indptr;
  Array<int32_t> y_indices;
  Array<float> cost_positive, cost_negative;
};

LinearProblem make_problem(const Arrays& a, double C, double eps, int max_iterations) {
  LinearProblem p;
  if (a.x_dense.ndim() == 2) {
    p.X_dense = {a.x_dense.shape(0), a.features, a.x_dense.data()};
  } else {
    p.X = csr_view<int32_t, float>(a.features, a.x_indptr, a.x_indices, a.x_data);
  }
  p.positives = positives_view(p.rows(), a.y_indptr, a.y_indices);
  p.C = C;
  p.eps = eps;
  p.max_iterations = max_iterations;
  if (a.cost_positive.size()) p.cost_positive = a.cost_positive.data();
  if (a.cost_negative.size()) p.cost_negative = a.cost_negative.data();
  return p;
}

// Calls solve(labels, count, thread, &weights, reports) per batch of labels and joins the results.
template <class Solve>
void run_batches(int64_t labels, int64_t batch, int threads, LabelWeights* all, LabelReport* reports,
                 const Solve& solve) {
  std::vector<int32_t> ids(static_cast<size_t>(labels));
  for (size_t k = 0; k < ids.size(); ++k) ids[k] = static_cast<int32_t>(k);
  const int64_t batches = chunk_count(labels, batch);
  std::vector<LabelWeights> parts(static_cast<size_t>(batches));
  parallel_for(batches, threads, [&](int64_t b, int thread) {
    const int64_t first = b * batch, count = std::min(batch, labels - first);
    solve(ids.data() + first, count, static_cast<size_t>(thread), &parts[static_cast<size_t>(b)],
          reports + first);
  });
  for (const LabelWeights& part : parts) {
    const int64_t offset = all->indptr.back();
    for (size_t k = 1; k < part.indptr.size(); ++k) all->indptr.push_back(offset + part.indptr[k]);
    all->indices.insert(all->indices.end(), part.indices.begin(), part.indices.end());
    all->values.insert(all->values.end(), part.values.begin(), part.values.end());
  }
}

}  // namespace

void bind_newton(py::module_& m) {
  // Trains all labels in batches of `batch`; the estimator's own training loop does the same.
  m.def(
      "newton_solve",
      [](int64_t features, const Array<int64_t>& x_indptr, const Array<int32_t>& x_indices,
         const Array<float>& x_data, const Array<float>& x_dense, const Array<int64_t>& y_indptr,
         const Array<int32_t>& y_indices, const Array<int64_t>& warm_indptr,
         const Array<int32_t>& warm_indices, const Array<float>& warm_data, const Array<float>& cost_positive,
         const Array<float>& cost_negative, double C, double eps, int max_iterations, int loss, int init,
         float threshold, int64_t keep_top, int64_t batch, int threads) {
        const LinearProblem p = make_problem({features, x_indptr, x_indices, x_data, x_dense, y_indptr,
                                              y_indices, cost_positive, cost_negative},
                                             C, eps, max_iterations);
        const Csr warm = warm_indptr.size() > 1
                             ? csr_view<int32_t, float>(features, warm_indptr, warm_indices, warm_data)
                             : Csr{};
        LabelWeights all;
        std::vector<LabelReport> reports(static_cast<size_t>(p.positives.rows));
        {
          const py::gil_scoped_release release;
          const NewtonFit fit = prepare_newton(p, static_cast<Loss>(loss), static_cast<InitRule>(init), warm);
          std::vector<NewtonScratch> scratch(static_cast<size_t>(threads));
          run_batches(
              p.positives.rows, batch, threads, &all, reports.data(),
              [&](const int32_t* ids, int64_t count, size_t thread, LabelWeights* out, LabelReport* report) {
                solve_newton(fit, ids, count, {threshold, keep_top}, scratch[thread], out, report);
              });
        }
        return result(std::move(all), reports);
      },
      py::arg("features"), py::arg("x_indptr").noconvert(), py::arg("x_indices").noconvert(),
      py::arg("x_data").noconvert(), py::arg("x_dense").noconvert(), py::arg("y_indptr").noconvert(),
      py::arg("y_indices").noconvert(), py::arg("warm_indptr").noconvert(),
      py::arg("warm_indices").noconvert(), py::arg("warm_data").noconvert(),
      py::arg("cost_positive").noconvert(), py::arg("cost_negative").noconvert(), py::arg("C"),
      py::arg("eps"), py::arg("max_iterations"), py::arg("loss"), py::arg("init"), py::arg("threshold"),
      py::arg("keep_top"), py::arg("batch"), py::arg("threads"));
  m.def(
      "l1_solve",
      [](int64_t features, const Array<int64_t>& x_indptr, const Array<int32_t>& x_indices,
         const Array<float>& x_data, const Array<float>& x_dense, const Array<int64_t>& y_indptr,
         const Array<int32_t>& y_indices, const Array<float>& cost_positive,
         const Array<float>& cost_negative, double C, double eps, int max_iterations, float threshold,
         int64_t keep_top, int64_t batch, int threads) {
        const LinearProblem p = make_problem({features, x_indptr, x_indices, x_data, x_dense, y_indptr,
                                              y_indices, cost_positive, cost_negative},
                                             C, eps, max_iterations);
        LabelWeights all;
        std::vector<LabelReport> reports(static_cast<size_t>(p.positives.rows));
        {
          const py::gil_scoped_release release;
          const L1Fit fit = prepare_l1(p);
          std::vector<L1Scratch> scratch(static_cast<size_t>(threads));
          run_batches(
              p.positives.rows, batch, threads, &all, reports.data(),
              [&](const int32_t* ids, int64_t count, size_t thread, LabelWeights* out, LabelReport* report) {
                solve_l1(fit, ids, count, {threshold, keep_top}, scratch[thread], out, report);
              });
        }
        return result(std::move(all), reports);
      },
      py::arg("features"), py::arg("x_indptr").noconvert(), py::arg("x_indices").noconvert(),
      py::arg("x_data").noconvert(), py::arg("x_dense").noconvert(), py::arg("y_indptr").noconvert(),
      py::arg("y_indices").noconvert(), py::arg("cost_positive").noconvert(),
      py::arg("cost_negative").noconvert(), py::arg("C"), py::arg("eps"), py::arg("max_iterations"),
      py::arg("threshold"), py::arg("keep_top"), py::arg("batch"), py::arg("threads"));
}

}  // namespace xmc::bind
