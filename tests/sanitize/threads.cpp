// What several threads do with one model and one pool, for ThreadSanitizer: `threads` must end without a report, and
// `threads race`, which adds to one number from all threads, with one.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <thread>
#include <vector>

#include "core/buffer_pool.h"
#include "core/parallel.h"
#include "core/rng.h"
#include "predict/check_rows.h"
#include "predict/packed.h"
#include "predict/predict.h"

namespace {

using namespace xmc;
using namespace xmc::predict;

constexpr int64_t kLabels = 300, kColumns = 80, kRows = 64, kBest = 5;
constexpr int kCallers = 8;

struct Matrix {
  std::vector<int64_t> indptr{0};
  std::vector<int32_t> indices;
  std::vector<float> data;
  CsrView<> view(int64_t columns) const {
    return {static_cast<int64_t>(indptr.size()) - 1, columns, indptr.data(), indices.data(), data.data()};
  }
};

Matrix random(int64_t rows, int64_t columns, uint32_t step, uint64_t seed) {
  Rng rng(seed);
  Matrix m;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = rng.below(step); c < columns; c += 1 + rng.below(step)) {
      m.indices.push_back(static_cast<int32_t>(c));
      m.data.push_back(static_cast<float>(rng.below(101)) / 50 - 1);
    }
    m.indptr.push_back(static_cast<int64_t>(m.indices.size()));
  }
  return m;
}

// Calls fn(caller) in so many threads at once.
template <class Fn>
void at_once(Fn&& fn) {
  std::vector<std::thread> threads;
  for (int caller = 0; caller < kCallers; ++caller) threads.emplace_back([&fn, caller] { fn(caller); });
  for (std::thread& thread : threads) thread.join();
}

void expect(bool holds, const char* what) {
  if (!holds) throw std::runtime_error(what);
}

// Every block once, and the exception of the lowest failing one, whoever else uses threads.
void pool() {
  at_once([](int caller) {
    std::vector<int> seen(1000);
    parallel_items(1000, 7, 3, [&](int64_t i, int) { ++seen[static_cast<size_t>(i)]; });
    for (const int n : seen) expect(n == 1, "an item was not visited once");
    std::atomic<int64_t> sum{0};
    parallel_for(100, 4, [&](int64_t block, int) { sum += block; });
    expect(sum == 4950, "a block is missing");
    bool caught = false;
    try {
      parallel_for(50, 3, [&](int64_t block, int) {
        if (block == caller + 5) throw std::invalid_argument("seen");
      });
    } catch (const std::invalid_argument&) {
      caught = true;
    }
    expect(caught, "an exception did not reach the caller");
  });
}

// One model read by all, in both forms, while others are made from the same weights.
void models() {
  const Matrix weights = random(kLabels, kColumns, 6, 1), rows = random(kRows, kColumns, 4, 2);
  const CsrView<> w = weights.view(kColumns), x = rows.view(kColumns);
  const std::vector<LabelBlock> blocks{{0, w}};
  const Layout layout = Layout::build(kLabels, kColumns, blocks, Layout::kMinDensity, 2);
  const Packed p = pack(kLabels, kColumns, blocks, false, 0.f, 2);
  const auto span = []<class T>(const std::vector<T>& v) {
    return Span<const T>{v.data(), static_cast<int64_t>(v.size())};
  };
  const PackedView small{kLabels,      kColumns,      span(p.label), span(p.bias),
                         span(p.step), span(p.first), span(p.ptr),   span(p.list)};
  const auto best = [&](bool packed, int threads) {
    std::vector<int32_t> ids(kRows * kBest);
    std::vector<float> scores(ids.size());
    const RowOptions options{true, false, 0.f};
    if (packed) {
      predict_packed(small, x, options, {}, kBest, threads, ids.data(), scores.data());
    } else {
      predict_topk(layout.view(), x, options, {}, kBest, threads, ids.data(), scores.data());
    }
    return ids;
  };
  const std::vector<int32_t> expected[2] = {best(false, 1), best(true, 1)};
  at_once([&](int caller) {
    for (int turn = 0; turn < 5; ++turn) {
      expect(best(caller % 2, 1 + turn % 3) == expected[caller % 2], "another prediction");
    }
    check_rows(w, static_cast<int64_t>(weights.indices.size()), 2);
    check_packed(small);
    if (caller == 0) Layout::build(kLabels, kColumns, blocks, Layout::kMinDensity, 2);
    if (caller == 1) pack(kLabels, kColumns, blocks, false, 0.f, 2);
  });
}

void race() {
  int64_t sum = 0;
  parallel_for(40, 4, [&](int64_t block, int) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));  // so that all of them take part
    sum += block;
  });
  std::printf("%lld\n", static_cast<long long>(sum));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && !std::strcmp(argv[1], "race")) {
    race();
    return 0;
  }
  pool();
  models();
  std::puts("no report");
}
