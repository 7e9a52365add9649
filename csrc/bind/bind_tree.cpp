#include <cstring>
#include <optional>

#include "bind/bind.h"
#include "tree/predict.h"
#include "tree/train.h"

namespace xmc::bind {
namespace {
using namespace tree;

LevelView view(const py::dict& level) {
  LevelView v;
  const auto array = [&]<class T, class Element>(const char* name, const T*& to, Element) {
    const py::object given = level[name];
    if (!py::isinstance<Array<Element>>(given)) {  // a converted copy would not outlive this function
      throw std::invalid_argument(std::string("damaged label tree: type of ") + name);
    }
    const auto values = py::reinterpret_borrow<Array<Element>>(given);
    to = reinterpret_cast<const T*>(values.data());
    return static_cast<int64_t>(values.size());
  };
  v.parents = array("child_start", v.child_start, int64_t{}) - 1;
  if (v.parents < 0) throw std::invalid_argument("damaged label tree: child_start");
  for (const auto& [name, to] : {std::pair{"bucket_start", &v.bucket_start},
                                 {"feature_start", &v.feature_start},
                                 {"entry_start", &v.entry_start}}) {
    if (array(name, *to, int64_t{}) != v.parents + 1)
      throw std::invalid_argument("damaged label tree: lengths");
  }
  v.buckets = array("bucket", v.bucket, uint32_t{}) / 2;
  v.features = array("tag", v.tag, uint16_t{});
  v.entries = array("child", v.child, uint8_t{});
  v.nodes = array("scale", v.scale, float{});
  if (array("count", v.count, uint8_t{}) != v.features || array("weight", v.weight, int8_t{}) != v.entries ||
      array("bias", v.bias, float{}) != v.nodes) {
    throw std::invalid_argument("damaged label tree: lengths");
  }
  return v;
}

py::dict arrays(Level&& level) {
  py::dict out;
  out["bucket_start"] = to_numpy(std::move(level.bucket_start));
  out["feature_start"] = to_numpy(std::move(level.feature_start));
  out["entry_start"] = to_numpy(std::move(level.entry_start));
  std::vector<uint32_t> bucket(2 * level.bucket.size());
  std::memcpy(bucket.data(), level.bucket.data(), bucket.size() * sizeof(uint32_t));
  out["bucket"] = to_numpy(std::move(bucket));
  out["tag"] = to_numpy(std::move(level.tag));
  out["count"] = to_numpy(std::move(level.count));
  out["child"] = to_numpy(std::move(level.child));
  out["weight"] = to_numpy(std::move(level.weight));
  out["scale"] = to_numpy(std::move(level.scale));
  out["bias"] = to_numpy(std::move(level.bias));
  return out;
}

}  // namespace

void bind_tree(py::module_& m) {
  m.def(
      "tree_train",
      [](int64_t cols, const Array<int64_t>& x_indptr, const Array<int32_t>& x_indices,
         const Array<float>& x_data, const Array<int64_t>& rows_indptr, const Array<int32_t>& rows_indices,
         const Array<int64_t>& y_indptr, const Array<int32_t>& y_indices, const Array<int64_t>& child_start,
         bool normalize, const std::optional<float>& bias, double C, double tol, float prune, int max_iter,
         uint64_t seed, const Array<int64_t>& blocks, int threads, const py::function& on_block) {
        const auto X = csr_view(cols, x_indptr, x_indices, x_data);
        const NodeProblem problem{X,
                                  {normalize, bias.has_value(), bias.value_or(0.f)},
                                  csr_view(X.rows, rows_indptr, rows_indices, Array<float>(0)),
                                  csr_view(X.rows, y_indptr, y_indices, Array<float>(0)),
                                  child_start.data(),
                                  C,
                                  tol,
                                  prune,
                                  max_iter,
                                  seed};
        std::vector<ParentBlock> list;
        for (py::ssize_t b = 0; b + 1 < blocks.size(); b += 2) {
          list.push_back({blocks.data()[b], blocks.data()[b + 1]});
        }
        const py::gil_scoped_release release;
        train_level(problem, list, threads, [&](int64_t block, Level&& solved) {
          const py::gil_scoped_acquire gil;
          on_block(block, arrays(std::move(solved)));
        });
      },
      py::arg("cols"), py::arg("x_indptr").noconvert(), py::arg("x_indices").noconvert(),
      py::arg("x_data").noconvert(), py::arg("rows_indptr").noconvert(), py::arg("rows_indices").noconvert(),
      py::arg("y_indptr").noconvert(), py::arg("y_indices").noconvert(), py::arg("child_start").noconvert(),
      py::arg("normalize"), py::arg("bias"), py::arg("C"), py::arg("tol"), py::arg("prune"),
      py::arg("max_iter"), py::arg("seed"), py::arg("blocks").noconvert(), py::arg("threads"),
      py::arg("on_block"));
  m.def(
      "tree_chunks",
      [](int64_t cols, const Array<int64_t>& indptr, const Array<int32_t>& indices,
         const Array<float>& values, const Array<float>& biases, const Array<int64_t>& child_start) {
        Level level;
        std::vector<int32_t> column(cols);
        for (size_t j = 0; j < column.size(); ++j) column[j] = static_cast<int32_t>(j);
        for (py::ssize_t p = 0; p + 1 < child_start.size(); ++p) {
          const int64_t a = child_start.data()[p], b = child_start.data()[p + 1];
          const int64_t from = indptr.data()[a], to = indptr.data()[b];
          std::vector<int64_t> ptr(indptr.data() + a, indptr.data() + b + 1);
          for (auto& v : ptr) v -= from;
          level.add(ptr, {indices.data() + from, indices.data() + to},
                    {values.data() + from, values.data() + to}, column, cols,
                    {biases.data() + a, biases.data() + b});
        }
        return arrays(std::move(level));
      },
      py::arg("cols"), py::arg("indptr").noconvert(), py::arg("indices").noconvert(),
      py::arg("values").noconvert(), py::arg("biases").noconvert(), py::arg("child_start").noconvert());
  m.def(
      "tree_check",
      [](const py::list& levels, int64_t features) {
        int64_t above = -1;
        for (const auto& level : levels) {
          const LevelView v = view(py::cast<py::dict>(level));
          check(v, features);
          if (above >= 0 && v.parents != above) throw std::invalid_argument("damaged label tree: levels");
          above = v.nodes;
        }
        return above;
      },
      py::arg("levels"), py::arg("features"));
  m.def(
      "tree_predict",
      [](int64_t cols, const Array<int64_t>& indptr, const Array<int32_t>& indices, const Array<float>& data,
         const py::list& levels, bool normalize, int64_t beam, int64_t k, int power, float decay, float slack,
         int threads) {
        const auto X = csr_view(cols, indptr, indices, data);
        std::vector<LevelView> views;
        for (const auto& level : levels) views.push_back(view(py::cast<py::dict>(level)));
        py::array_t<int32_t> ids({X.rows, k});
        py::array_t<float> scores({X.rows, k});
        int32_t* to_ids = ids.mutable_data();
        float* to_scores = scores.mutable_data();
        {
          const py::gil_scoped_release release;
          beam_search(X, views, {beam, k, power, decay, slack, {normalize, false, 0}}, threads, to_ids,
                      to_scores);
        }
        return py::make_tuple(ids, scores);
      },
      py::arg("cols"), py::arg("indptr").noconvert(), py::arg("indices").noconvert(),
      py::arg("data").noconvert(), py::arg("levels"), py::arg("normalize"), py::arg("beam"), py::arg("k"),
      py::arg("power"), py::arg("decay"), py::arg("slack"), py::arg("threads"));
}

}  // namespace xmc::bind
