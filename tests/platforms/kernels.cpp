// usage: kernels KERNEL LEVEL REPEATS
// Calls one kernel of the core on made data, so that instructions can be counted from outside: those of one call are
// the difference of two runs. `kernels` alone prints the names. Sizes are those of everyday calls, all in the caches.
#include "fanin/kernels.h"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <utility>
#include <vector>

#include "cluster/gram.h"
#include "core/rng.h"
#include "core/simd.h"
#include "decide/row_kernels.h"
#include "decide/weighted_topk_kernels.h"
#include "gather/gather_dot.h"
#include "knn/filter.h"
#include "knn/knn.h"
#include "linear/newton_kernels.h"
#include "linear/tail_kernels.h"
#include "predict/predict.h"
#include "spmm/row_adam.h"
#include "spmm/spmm.h"

namespace {

using namespace xmc;

struct Data {
  Rng rng{1};
  std::vector<float> floats(int64_t n) {
    std::vector<float> x(static_cast<size_t>(n) + 64);
    for (float& v : x) v = static_cast<float>(rng.below(2001)) / 1000 - 1;
    return x;
  }
  template <class T>
  std::vector<T> ids(int64_t n, uint32_t below) {
    std::vector<T> x(static_cast<size_t>(n) + 64);
    for (T& v : x) v = static_cast<T>(rng.below(below));
    return x;
  }
};

using Call = std::function<void()>;

struct Kernel {
  const char* name;
  Call (*make)(Data& data);
};

// Each makes its data, which the call then owns.
const Kernel kKernels[] = {
    {"cluster: products of label vectors",
     [](Data& d) -> Call {
       return [A = d.floats(64 * 128), G = d.floats(128 * 128)]() mutable {
         cluster::gram_kernels().syrk(A.data(), 64, 128, 128, G.data());
       };
     }},
    {"gather: products with listed rows",
     [](Data& d) -> Call {
       return [x = d.floats(256), rows = d.floats(500 * 256), ids = d.ids<int64_t>(64, 500),
               out = d.floats(64)]() mutable {
         gather::gather_dot_kernels().dots(x.data(), rows.data(), ids.data(), 64, 256, out.data());
       };
     }},
    {"gather: sum of listed rows",
     [](Data& d) -> Call {
       return [a = d.floats(64), rows = d.floats(500 * 256), ids = d.ids<int64_t>(64, 500),
               out = d.floats(256)]() mutable {
         gather::gather_dot_kernels().combine(a.data(), rows.data(), ids.data(), 64, 256, out.data());
       };
     }},
    {"spmm: row of a product",
     [](Data& d) -> Call {
       return [columns = d.ids<int32_t>(60, 500), values = d.floats(60), B = d.floats(500 * 256),
               out = d.floats(256)]() mutable {
         spmm::spmm_kernels().row(columns.data(), values.data(), 60, B.data(), 256, out.data());
       };
     }},
    {"spmm: step of Adam",
     [](Data& d) -> Call {
       std::vector<float> v(1100, 0.5f);
       return [g = d.floats(1024), w = d.floats(1024), m = d.floats(1024), v]() mutable {
         const spmm::AdamStep step{0.9f, 0.999f, 1e-8f, 1e-3f, 0.5f};
         spmm::row_adam_kernels().row(step, g.data(), 1024, w.data(), m.data(), v.data());
       };
     }},
    {"knn: scores of rows",
     [](Data& d) -> Call {
       return [rows = d.floats(500 * 384), query = d.floats(384), at = d.ids<int32_t>(64, 499),
               scores = d.floats(64)]() mutable {
         for (size_t i = 384; i < query.size(); ++i) query[i] = 0;
         knn::knn_kernels().score(rows.data(), 384, query.data(), at.data(), 64, scores.data());
       };
     }},
    {"linear: products of rows and weights",
     [](Data& d) -> Call {
       // 40 rows of 64 values each, stored as one-word ids
       std::vector<linear::RowRef> refs;
       for (int64_t i = 0; i < 40; ++i) refs.push_back({i * 64, i * 64, 64, 0, 1.f, 64});
       return [refs, ids = d.ids<uint16_t>(40 * 64, 2000), values = d.floats(40 * 64),
               M = d.floats(2001 * 16), out = d.floats(40 * 16)]() mutable {
         linear::RowSet rows{};
         rows.x.rows = refs.data();
         rows.x.ids = ids.data();
         rows.x.values = values.data();
         rows.count = 40;
         linear::newton_kernels().product(rows, linear::kAllLanes, M.data(), nullptr, out.data());
       };
     }},
    {"linear: dot products of sixteen labels",
     [](Data& d) -> Call {
       return [a = d.floats(16 * 1024), b = d.floats(16 * 1024)] {
         double out[linear::kLanes];
         linear::newton_kernels().dot(a.data(), b.data(), 1024, out);
       };
     }},
    {"linear: update of sixteen labels",
     [](Data& d) -> Call {
       return [keep = d.floats(16), step = d.floats(16), b = d.floats(16 * 1024),
               a = d.floats(16 * 1024)]() mutable {
         linear::newton_kernels().update(keep.data(), step.data(), b.data(), 1024, a.data());
       };
     }},
    {"linear: terms of the squared hinge",
     [](Data& d) -> Call {
       return [z = d.floats(16 * 1024), above = std::vector<float>(16, -.5f), cost = d.floats(16),
               s = d.floats(16 * 1024), h = d.floats(16 * 1024)]() mutable {
         linear::hinge_kernels().terms(z.data(), nullptr, 1024, above.data(), cost.data(), s.data(),
                                       h.data());
       };
     }},
    {"linear: terms of the logistic loss",
     [](Data& d) -> Call {
       return
           [z = d.floats(16 * 1024), above = std::vector<float>(16, -.5f), cost = std::vector<float>(16, 1.f),
            s = d.floats(16 * 1024), h = d.floats(16 * 1024)]() mutable {
             linear::logistic_kernels().terms(z.data(), nullptr, 1024, above.data(), cost.data(), s.data(),
                                              h.data());
           };
     }},
    {"linear: scan of row sums",
     [](Data& d) -> Call {
       return [sums = d.floats(8192), norms = d.floats(8192), rows = d.ids<int32_t>(8192, 2)]() mutable {
         linear::tail_kernels().scan(sums.data(), norms.data(), 8192, 1.f, 1.9f, 0, rows.data());
       };
     }},
    {"decide: labels above a threshold",
     [](Data& d) -> Call {
       return [eta = d.floats(8192), a = d.floats(8192), b = d.floats(8192), labels = d.ids<int32_t>(8192, 2),
               gains = d.floats(8192)]() mutable {
         int64_t next = 0;
         decide::dense_topk_kernels().above(eta.data(), a.data(), b.data(), 0, 8192, 1.9f, 8192,
                                            labels.data(), gains.data(), &next);
       };
     }},
    {"decide: gains of a row",
     [](Data& d) -> Call {
       return [slope = d.floats(5000), labels = d.ids<int32_t>(128, 5000), eta = d.floats(128),
               gains = d.floats(128)]() mutable {
         const auto& kernels = decide::row_kernels();
         kernels.slope_gains(slope.data(), labels.data(), eta.data(), 128, gains.data());
         kernels.largest(gains.data(), 128);
         kernels.kth_bound(gains.data(), 128, 5);
       };
     }},
    {"fan-in: forward",
     [](Data& d) -> Call {
       const int64_t line = fanin::tile_size();
       return [line, x = d.floats(768 * line), lists = d.ids<uint16_t>(64 * 32, 768), w = d.floats(64 * 32),
               z = d.floats(64 * line)]() mutable {
         fanin::fanin_forward().forward(x.data(), line, {lists.data(), 16}, w.data(), nullptr, 64, 32, 1,
                                        line, false, false, 0, z.data());
       };
     }},
    {"fan-in: gradient for the features",
     [](Data& d) -> Call {
       const int64_t line = fanin::tile_size();
       return [line, gx = d.floats(768 * line), lists = d.ids<uint16_t>(64 * 32, 768), w = d.floats(64 * 32),
               g = d.floats(64 * line)]() mutable {
         fanin::fanin_backward().grad_features(gx.data(), line, {lists.data(), 16}, w.data(), g.data(), line,
                                               nullptr, 64, 32, 1, false, false, 0);
       };
     }},
    {"fan-in: gradient for the weights",
     [](Data& d) -> Call {
       const int64_t line = fanin::tile_size();
       return [line, x = d.floats(768 * line), lists = d.ids<uint16_t>(64 * 32, 768), gw = d.floats(64 * 32),
               g = d.floats(64 * line)]() mutable {
         fanin::fanin_backward().grad_weights(x.data(), 0, {lists.data(), 16}, g.data(), line, nullptr, 1, 64,
                                              32, 1, 0, gw.data(), nullptr);
       };
     }},
    {"fan-in: loss",
     [](Data& d) -> Call {
       const int64_t line = fanin::tile_size();
       return [z = d.floats(256 * line), sign = std::vector<float>(static_cast<size_t>(256 * line), -1.f),
               valid = std::vector<float>(static_cast<size_t>(line), 1.f),
               active = std::vector<uint8_t>(256)]() mutable {
         fanin::fanin_loss().loss(fanin::Loss::squared_hinge, z.data(), sign.data(), valid.data(), 256, 1.f,
                                  active.data());
       };
     }},
    {"predict: the five best of 2,000 labels",
     [](Data& d) -> Call {
       std::vector<int64_t> indptr{0}, x_indptr{0};
       std::vector<int32_t> indices, x_indices;
       for (int64_t label = 0; label < 2000; ++label) {
         for (int32_t c = static_cast<int32_t>(d.rng.below(8)); c < 300;
              c += 1 + static_cast<int32_t>(d.rng.below(8)))
           indices.push_back(c);
         indptr.push_back(static_cast<int64_t>(indices.size()));
       }
       for (int row = 0; row < 32; ++row) {
         for (int32_t c = static_cast<int32_t>(d.rng.below(8)); c < 300;
              c += 1 + static_cast<int32_t>(d.rng.below(8)))
           x_indices.push_back(c);
         x_indptr.push_back(static_cast<int64_t>(x_indices.size()));
       }
       const auto n = static_cast<int64_t>(indices.size()), m = static_cast<int64_t>(x_indices.size());
       const std::vector<float> values = d.floats(n), x_values = d.floats(m);
       const CsrView<> w{2000, 300, indptr.data(), indices.data(), values.data()};
       auto layout = std::make_shared<predict::Layout>(
           predict::Layout::build(2000, 300, {{0, w}}, predict::Layout::kMinDensity, 1));
       return [layout, x_indptr, x_indices, x_values, ids = d.ids<int32_t>(160, 2),
               scores = d.floats(160)]() mutable {
         const CsrView<> x{32, 300, x_indptr.data(), x_indices.data(), x_values.data()};
         predict::predict_topk(layout->view(), x, {true, false, 0.f}, {}, 5, 1, ids.data(), scores.data());
       };
     }},
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    for (const Kernel& kernel : kKernels) std::puts(kernel.name);
    return 0;
  }
  force_simd_level(simd_from_name(argv[2]));
  for (const Kernel& kernel : kKernels) {
    if (std::strcmp(kernel.name, argv[1])) continue;
    Data data;
    const Call call = kernel.make(data);
    for (int i = std::atoi(argv[3]); i > 0; --i) call();
    return 0;
  }
  std::fprintf(stderr, "no kernel is called %s\n", argv[1]);
  return 1;
}
