// Fuzz target of opening a sparse linear model and predicting with it (csrc/predict/check_rows.h, layout.h, near.h, packed.h): whatever the
// arrays of its files hold, the check refuses them or a prediction stays within them and gives labels of the model. The
// first bytes make a good model (its sizes, its form), each further group of four changes an element (which array, where,
// to what) or a length. Checksums are not looked at here: they are right.
//
// With libFuzzer (-DXMC_LIBFUZZER) or with the main below: fuzz_model SECONDS [SEED].
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "core/rng.h"
#include "drive.h"
#include "predict/check_rows.h"
#include "predict/near.h"
#include "predict/packed.h"
#include "predict/predict.h"

namespace {

using namespace xmc::predict;

// The arrays of a file in the exact form.
template <class Index>
struct Rows {
  std::vector<int64_t> indptr{0};
  std::vector<Index> indices;
  std::vector<float> data;
  xmc::CsrView<Index> view(int64_t columns) const {
    return {static_cast<int64_t>(indptr.size()) - 1, columns, indptr.data(), indices.data(), data.data()};
  }
};

template <class Index>
Rows<Index> good_rows(int64_t labels, int64_t columns, uint32_t step, xmc::Rng& rng) {
  Rows<Index> rows;
  for (int64_t l = 0; l < labels; ++l) {
    for (int64_t c = rng.below(step); c < columns; c += 1 + rng.below(step)) {
      rows.indices.push_back(static_cast<Index>(c));
      rows.data.push_back(static_cast<float>(rng.below(19)) / 4 - 2);
    }
    rows.indptr.push_back(static_cast<int64_t>(rows.indices.size()));
  }
  return rows;
}

// What a file may hold instead of a number.
template <class T>
T hostile(uint8_t how, T old) {
  using Limits = std::numeric_limits<T>;
  if constexpr (std::is_floating_point_v<T>) {
    const T values[] = {Limits::max(), Limits::infinity(), Limits::quiet_NaN(), static_cast<T>(how)};
    return values[how % 4];
  } else {
    const auto bits = static_cast<uint64_t>(old);
    const uint64_t values[] = {static_cast<uint64_t>(Limits::max()),
                               static_cast<uint64_t>(Limits::lowest()),
                               bits + 1,
                               bits - 1,
                               0,
                               how,
                               uint64_t{1} << (how % 63),
                               ~bits};
    return static_cast<T>(values[how % 8]);
  }
}

template <class T>
void change(std::vector<T>& array, const uint8_t* b) {
  if (b[1] % 16 == 15) {
    array.resize(b[2] % 64);
  } else if (!array.empty()) {
    T& value = array[(b[1] * 256u + b[2]) % array.size()];
    value = hostile(b[3], value);
  }
}

template <class T>
struct StoredAs {
  using Number = T;
};
template <class T>
  requires requires { typename T::Number; }
struct StoredAs<T> {
  using Number = typename T::Number;
};

int64_t predicted = 0;

struct Batch {
  std::vector<int64_t> indptr{0};
  std::vector<int32_t> indices;
  std::vector<float> data;
  xmc::CsrView<> view(int64_t columns) const {
    return {3, columns, indptr.data(), indices.data(), data.data()};
  }
};

// A row of every column, an empty one, one of some.
Batch batch(int64_t columns) {
  Batch x;
  for (const int64_t step : {int64_t{1}, columns + 1, int64_t{3}}) {
    for (int64_t c = step > columns ? columns : 0; c < columns; c += step) {
      x.indices.push_back(static_cast<int32_t>(c));
      x.data.push_back(0.5f);
    }
    x.indptr.push_back(static_cast<int64_t>(x.indices.size()));
  }
  return x;
}

template <class Predict>
void predict(int64_t labels, int64_t columns, bool has_bias, bool calibrated, Predict&& call) {
  const Batch x = batch(columns - has_bias);
  const auto padded = static_cast<size_t>((labels + kTile - 1) / kTile * kTile);
  const std::vector<float> scale(padded, 2.f), shift(padded, -1.f);
  const Calibration calibration{calibrated ? scale.data() : nullptr, calibrated ? shift.data() : nullptr};
  const int64_t k = labels < 4 ? labels : 4;
  std::vector<int32_t> ids(static_cast<size_t>(3 * k));
  std::vector<float> scores(ids.size());
  call(x.view(columns - has_bias), xmc::RowOptions{true, has_bias, 1.f}, calibration, k, ids.data(),
       scores.data());
  for (const int32_t id : ids) {
    if (id < 0 || id >= labels) std::abort();
  }
  ++predicted;
}

template <class Index>
void exact(const uint8_t* b, size_t size, int64_t labels, int64_t columns, uint32_t step, xmc::Rng& rng) {
  Rows<Index> rows = good_rows<Index>(labels, columns, step, rng);
  for (; size >= 4; b += 4, size -= 4) {
    if (b[0] % 8 == 0) columns = hostile(b[3], static_cast<int32_t>(columns));
    if (b[0] % 8 < 3) change(rows.indptr, b);
    if (b[0] % 8 > 2 && b[0] % 8 < 6) change(rows.indices, b);
    if (b[0] % 8 > 5) change(rows.data, b);
  }
  // As model/_storage.py and bind/bind_packed.cpp: the arrays have fitting lengths.
  if (rows.indptr.empty() || rows.data.size() != rows.indices.size() || columns < 1) return;
  const xmc::CsrView<Index> view = rows.view(columns);
  check_rows(view, static_cast<int64_t>(rows.indices.size()), 1);
  if (columns > 1 << 16) return;  // memory
  const Layout layout = Layout::build(view.rows, columns, {{0, view}}, Layout::kMinDensity, 1);
  predict(view.rows, columns, labels % 2, labels % 3 == 0,
          [&](const xmc::CsrView<>& x, const xmc::RowOptions& options, const Calibration& calibration,
              int64_t k, int32_t* ids,
              float* scores) { predict_topk(layout.view(), x, options, calibration, k, 1, ids, scores); });
}

void packed(const uint8_t* b, size_t size, int64_t labels, int64_t columns, uint32_t step, xmc::Rng& rng) {
  const Rows<int32_t> rows = good_rows<int32_t>(labels, columns, step, rng);
  const bool has_bias = labels % 2;
  Packed p = pack(labels, columns, {{0, rows.view(columns)}}, has_bias, 0.f, 1);
  for (; size >= 4; b += 4, size -= 4) {
    switch (b[0] % 8) {
      case 0:
        change(p.label, b);
        break;
      case 1:
        change(p.bias, b);
        break;
      case 2:
        change(p.step, b);
        break;
      case 3:
        change(p.first, b);
        break;
      case 4:
      case 5:
        change(p.ptr, b);
        break;
      case 6:
        change(p.list, b);
        break;
      default:
        (b[1] & 1 ? labels : columns) = hostile(b[3], static_cast<int32_t>(labels));
    }
  }
  const auto span = []<class T>(const std::vector<T>& v) {
    return xmc::Span<const T>{v.data(), static_cast<int64_t>(v.size())};
  };
  const PackedView view{labels,       columns,       span(p.label), span(p.bias),
                        span(p.step), span(p.first), span(p.ptr),   span(p.list)};
  check_packed(view);
  try {
    unpack(view);
  } catch (const std::invalid_argument&) {  // a list that leaves its block; prediction does not care
  }
  if (columns > 1 << 16) return;  // a model without labels may have any number: memory of the rows
  const bool biased = view.bias.size() == labels && has_bias;
  predict(
      labels, columns, biased, labels % 3 == 0,
      [&](const xmc::CsrView<>& x, const xmc::RowOptions& options, const Calibration& calibration, int64_t k,
          int32_t* ids, float* scores) { predict_packed(view, x, options, calibration, k, 1, ids, scores); });
}

// The stored form of an exact model. Some weights are large, so that there are outliers.
void stored(const uint8_t* b, size_t size, int64_t labels, int64_t columns, uint32_t step, xmc::Rng& rng) {
  Rows<int32_t> rows = good_rows<int32_t>(labels, columns, step, rng);
  for (size_t w = 0; w < rows.data.size(); w += 1 + rng.below(40)) rows.data[w] *= 100;
  const Layout built = Layout::build(labels, columns, {{0, rows.view(columns)}}, Layout::kMinDensity, 1);
  LayoutArrays<ArrayView> views = built.view();
  int64_t number = 0, count = 0;
  views.for_each([&](const char*, const auto&) { ++count; });
  std::vector<std::vector<uint64_t>> kept;  // bytes of changed arrays, aligned
  for (; size >= 4; b += 4, size -= 4) {
    if (b[0] % 16 == 0) views.block = hostile(b[3], views.block);
    if (b[0] % 16 == 1)
      (b[1] & 1 ? views.labels : views.columns) = hostile(b[3], static_cast<int32_t>(labels));
    const int64_t which = b[0] / 16 % count;
    number = 0;
    views.for_each([&]<class T>(const char*, ArrayView<T>& view) {
      if (number++ != which || b[0] % 16 < 2) return;
      using Number = typename StoredAs<T>::Number;
      constexpr size_t kNumbers = sizeof(T) / sizeof(Number);
      const auto* from = reinterpret_cast<const Number*>(view.data);
      std::vector<Number> numbers(from, from + static_cast<size_t>(view.size) * kNumbers);
      change(numbers, b);
      auto& memory = kept.emplace_back((numbers.size() * sizeof(Number) + 7) / 8);
      if (!numbers.empty()) std::memcpy(memory.data(), numbers.data(), numbers.size() * sizeof(Number));
      view = {reinterpret_cast<const T*>(memory.data()), static_cast<int64_t>(numbers.size() / kNumbers)};
    });
  }
  const Layout layout = Layout::open(views, false, 1);
  if (views.columns > 1 << 16) return;  // memory of the rows
  predict(views.labels, views.columns, labels % 2 && views.columns > 0, labels % 3 == 0,
          [&](const xmc::CsrView<>& x, const xmc::RowOptions& options, const Calibration& calibration,
              int64_t k, int32_t* ids,
              float* scores) { predict_topk(layout.view(), x, options, calibration, k, 1, ids, scores); });
  rows_of(layout.view(), 1);
}

// The index for nearly exact prediction, beside a good layout: `of` gives the candidates and the margin.
void near(uint8_t of, const uint8_t* b, size_t size, int64_t labels, int64_t columns, uint32_t step,
          xmc::Rng& rng) {
  const Rows<int32_t> rows = good_rows<int32_t>(labels, columns, step, rng);
  const Layout layout = Layout::build(labels, columns, {{0, rows.view(columns)}}, Layout::kMinDensity, 1);
  const bool has_bias = labels % 2;
  const NearArrays<xmc::Buffer> built =
      build_near(layout.view(), {true, has_bias, 1.f}, 0.125, int64_t{1} << 20, 1);
  NearView view;
  view.labels = built.labels, view.features = built.features;
  std::vector<std::vector<uint64_t>> kept;  // bytes of the arrays, aligned
  int number = 0;
  const auto changed = [&]<class T>(const xmc::Buffer<T>& from, ArrayView<T>& to) {
    std::vector<T> numbers(from.data(), from.data() + from.size());
    for (size_t g = 0; g + 4 <= size; g += 4) {
      if (b[g] % 7 == number) change(numbers, b + g);
    }
    auto& memory = kept.emplace_back((numbers.size() * sizeof(T) + 7) / 8);
    if (!numbers.empty()) std::memcpy(memory.data(), numbers.data(), numbers.size() * sizeof(T));
    to = {reinterpret_cast<const T*>(memory.data()), static_cast<int64_t>(numbers.size())};
    ++number;
  };
  changed(built.unit, view.unit), changed(built.bias, view.bias), changed(built.step, view.step);
  changed(built.dense, view.dense), changed(built.byte, view.byte), changed(built.ptr, view.ptr);
  changed(built.posting, view.posting);
  check_near(view, false, 1);
  const float margin = hostile(of, 1.f);
  predict(labels, columns, has_bias, false,
          [&](const xmc::CsrView<>& x, const xmc::RowOptions& options, const Calibration&, int64_t k,
              int32_t* ids, float* scores) {
            std::vector<float> rough(static_cast<size_t>(3 * k));
            predict_near(view, layout.view(), x, options, k, of, margin, 1, ids, scores, rough.data());
          });
}

void run(const uint8_t* bytes, size_t size) {
  if (size < 4) return;
  xmc::Rng rng(bytes[0]);
  const int64_t labels = bytes[1] % 200, columns = 1 + bytes[2] % 60;
  const uint32_t step = 1 + bytes[3] / 4 % 12;
  if (size > 44) size = 44;
  try {
    if (bytes[3] % 4 == 0) exact<int32_t>(bytes + 4, size - 4, labels, columns, step, rng);
    if (bytes[3] % 4 == 1) exact<uint16_t>(bytes + 4, size - 4, labels, columns, step, rng);
    if (bytes[3] % 4 == 2) packed(bytes + 4, size - 4, labels, columns, step, rng);
    if (bytes[3] % 4 == 3 && bytes[2] < 128) stored(bytes + 4, size - 4, labels, columns, step, rng);
    if (bytes[3] % 4 == 3 && bytes[2] >= 128) near(bytes[0], bytes + 4, size - 4, labels, columns, step, rng);
  } catch (const std::invalid_argument&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  run(bytes, size);
  return 0;
}

#if !defined(XMC_LIBFUZZER)
int main(int argc, char** argv) {
  const int result = drive(argc, argv, [](xmc::Rng& rng) {
    std::string input(4 + 4 * rng.below(4), '\0');
    for (char& c : input) c = static_cast<char>(rng.below(256));
    return input;
  });
  std::printf("%lld of them predicted\n", static_cast<long long>(predicted));
  return result;
}
#endif
