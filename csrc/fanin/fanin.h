// Fixed fan-in sparse output layer (Schultheis & Babbar 2023, "Towards memory-efficient training for
// extremely large output spaces") and its group-shared form (a group of labels shares one index list).
//
//   out[b, l] = bias[l] + sum_{i<s} x[b, idx[l / group, i]] * w[l, i]
//
// Shapes and layouts (all row-major and contiguous; x, out and g may be column-major instead, see Order):
//   x       batch x features       out, g  batch x labels         idx  ceil(labels / group) x s
//   w, gw   labels x s             bias, gbias  labels            gx   batch x features
// An index list holds s different features. Indices have 16 bits, or 32 bits for more than 65,536 features.
//
// Storage of x, w, out and the gradients is float32, bfloat16 or float16, each on its own; every product and
// sum is float32. Results depend on the shapes only: the same bits for any number of threads.
//
// How it runs: the batch is the SIMD dimension. x is packed into tiles of two vectors of rows (kTile),
// [tile][feature][kTile], so that a feature of a tile is one or two cache lines and one index serves kTile
// rows; where that is more than L2 holds, tiles have 16 rows. Weights and indices stream through once per
// block of labels; output tiles are transposed in cache and streamed to memory row by row. For groups of a
// multiple of 16 the labels are the SIMD dimension of the weights' gradient, so that g needs no transposition,
// and the next block of g is fetched between the arithmetic.
#pragma once

#include <cstdint>
#include <vector>

#include "core/topk.h"
#include "core/types.h"

namespace xmc::fanin {

enum class DType : int { f32 = 0, bf16 = 1, f16 = 2 };

inline constexpr int64_t kMaxFeatures = int64_t{1} << 26;

// How a matrix with a row for each batch row lies in memory: row after row as torch's default, or column after
// column, (features, batch) or (labels, batch), which spares the passes a transposition.
enum class Order : int { rows = 0, columns = 1 };

struct ConstTensor {
  const void* data = nullptr;
  DType type = DType::f32;
  Order order = Order::rows;
};
struct Tensor {
  void* data = nullptr;
  DType type = DType::f32;
  Order order = Order::rows;
};

struct Layer {
  int64_t labels = 0;
  int64_t features = 0;
  int64_t fan_in = 0;
  int64_t group = 1;              // labels that share an index list
  const void* indices = nullptr;  // uint16 or int32
  int index_bits = 16;
  ConstTensor weights;
  ConstTensor bias;  // data may be null

  int64_t groups() const { return (labels + group - 1) / group; }
};
// Throws std::invalid_argument for impossible sizes. Indices are checked by the kernels as they are read.
void check(const Layer& layer, int64_t batch);

// out = layer(x)
void forward(const Layer& layer, ConstTensor x, int64_t batch, Tensor out, int threads);

// gx[b, d] = sum_{l, i: idx[l, i] = d} w[l, i] g[b, l]
void grad_features(const Layer& layer, ConstTensor g, int64_t batch, Tensor gx, int threads);

// gw[l, i] = sum_b x[b, idx[l, i]] g[b, l];   gbias[l] = sum_b g[b, l] (if its data is not null)
void grad_weights(const Layer& layer, ConstTensor x, ConstTensor g, int64_t batch, Tensor gw, Tensor gbias,
                  int threads);

// The same gradients for a sparse g, cost proportional to its entries.
// g is batch x labels in CSR. The weight gradient has a row only for labels that occur in g, ascending.
struct SparseGradients {
  std::vector<int64_t> labels;
  std::vector<float> weights;  // labels.size() x s
  std::vector<float> bias;     // labels.size()
};
void grad_features_sparse(const Layer& layer, const CsrView<>& g, Tensor gx, int threads);
SparseGradients grad_weights_sparse(const Layer& layer, ConstTensor x, const CsrView<>& g, int threads);

// Loss without logits ("skip-loss"): forward, loss and gradients block of labels by block of labels; the
// logits z = layer(x) exist for one block at a time. Targets y in {-1, +1}, +1 where the CSR has an entry.
//   squared_hinge: sum max(0, 1 - y z)^2         bce: sum log(1 + exp(-y z))
// Returns scale * loss and writes the gradients of that (any of them may have null data: not computed).
// Labels of a tile whose gradient is exactly zero are skipped in the backward pass.
enum class Loss : int { squared_hinge = 0, bce = 1 };
double loss_and_gradients(const Layer& layer, ConstTensor x, int64_t batch, const CsrView<>& targets,
                          Loss loss, float scale, Tensor gx, Tensor gw, Tensor gbias, int threads);

// The k best labels of each row, best first (topk.h's order); scores and ids are batch x k, k <= labels.
void topk(const Layer& layer, ConstTensor x, int64_t batch, int64_t k, float* scores, int32_t* ids,
          int threads);

// Prune and regrow connections in place. `strength` (groups x s) decides: in each list the connections with
// strength <= threshold, and in any case the `count` weakest, are replaced by features that the list does
// not hold: the first such of `candidates` (groups x n_candidates, best first; RigL), then random ones.
// Weights of new connections become zero; changed[g, i] = 1 marks them. The order of the kept ones stays.
struct Rewire {
  const float* strength = nullptr;
  float threshold = -1.f;
  int64_t count = 0;
  const int32_t* candidates = nullptr;
  int64_t n_candidates = 0;
  uint64_t seed = 0;
};
void rewire(const Layer& layer, void* indices, Tensor weights, const Rewire& how, uint8_t* changed,
            int threads);

// Random index lists, s different features each, ascending; the same for the same seed.
void random_indices(int64_t groups, int64_t features, int64_t fan_in, int index_bits, uint64_t seed,
                    void* indices, int threads);

}  // namespace xmc::fanin
