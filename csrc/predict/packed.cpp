#include "predict/packed.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <string>
#include <variant>

#include "core/parallel.h"

namespace xmc::predict {
namespace {

constexpr int64_t kRecord[] = {3, 4, 6};  // bytes, by width
constexpr uint32_t kMostGap[] = {15, 255, 65535};
constexpr int64_t kMostBytes = int64_t{1} << 30;  // of a block's lists
constexpr int64_t kColumnsAtOnce = 1024;          // of a task

// The row of one label.
struct LabelRow {
  std::variant<const int32_t*, const uint16_t*> columns;
  const float* weights = nullptr;
  int64_t n = 0;
};

std::vector<LabelRow> rows_of(int64_t labels, const std::vector<LabelBlock>& blocks) {
  std::vector<LabelRow> rows(static_cast<size_t>(labels));
  for (const auto& [first, of_block] : blocks) {
    std::visit(
        [&, first = first](const auto& csr) {
          for (int64_t r = 0; r < csr.rows; ++r) {
            rows[static_cast<size_t>(first + r)] = {csr.indices + csr.begin(r), csr.data + csr.begin(r),
                                                    csr.size(r)};
          }
        },
        of_block);
  }
  return rows;
}

// A list before it is coded.
struct Postings {
  const uint16_t* place;
  const uint8_t* code;
  int64_t n;

  uint32_t gap(int64_t i) const {
    return i ? static_cast<uint32_t>(place[i]) - place[i - 1] : static_cast<uint32_t>(place[0]) + 1;
  }
  // Bytes with each width.
  void sizes(int64_t (&bytes)[3]) const {
    int64_t count[3] = {n, n, n};
    for (int64_t i = 0; i < n; ++i) {
      for (int w = 0; w < 3; ++w) count[w] += (gap(i) - 1) / kMostGap[w];
    }
    for (int w = 0; w < 3; ++w) bytes[w] = (count[w] + 1) / 2 * kRecord[w];
  }
  int best() const {
    int64_t bytes[3];
    sizes(bytes);
    return static_cast<int>(std::min_element(bytes, bytes + 3) - bytes);
  }
  void write(int width, uint8_t* to) const {
    bool second = false;
    const auto put = [&](uint32_t gap, uint8_t code) {
      if (width == 0) {
        to[0] = static_cast<uint8_t>(second ? to[0] | gap << 4 : gap);
        to[1 + second] = code;
      } else if (width == 1) {
        to[second] = static_cast<uint8_t>(gap);
        to[2 + second] = code;
      } else {
        to[2 * second] = static_cast<uint8_t>(gap);
        to[2 * second + 1] = static_cast<uint8_t>(gap >> 8);
        to[4 + second] = code;
      }
      if (second) to += kRecord[width];
      second = !second;
    };
    for (int64_t i = 0; i < n; ++i) {
      uint32_t left = gap(i);
      for (; left > kMostGap[width]; left -= kMostGap[width]) put(kMostGap[width], 0);
      put(left, code[i]);
    }
    if (second) put(0, 0);
  }
};

void expect(bool holds, const char* what) {
  if (!holds) throw std::invalid_argument(std::string("the packed model is damaged: ") + what);
}

}  // namespace

Packed pack(int64_t labels, int64_t columns, const std::vector<LabelBlock>& blocks, bool has_bias,
            float delta, const float* level, int threads) {
  const std::vector<LabelRow> rows = rows_of(labels, blocks);
  float middle[kLevels - 2];  // between neighbours of the levels 1, 2, ..
  for (int64_t i = 0; i < kLevels - 2; ++i) middle[i] = (level[i + 1] + level[i + 2]) / 2;
  const int64_t constant = has_bias ? columns - 1 : -1;
  // Calls fn(column, weight) for what is kept of a label, and gives the weight of the constant column.
  const auto for_kept = [&](int64_t l, auto&& fn) {
    const LabelRow& row = rows[static_cast<size_t>(l)];
    float bias = 0;
    std::visit(
        [&](const auto* of) {
          for (int64_t i = 0; i < row.n; ++i) {
            if (static_cast<int64_t>(of[i]) == constant) {
              bias = row.weights[i];
            } else if (std::abs(row.weights[i]) >= delta && row.weights[i] != 0) {
              fn(static_cast<int64_t>(of[i]), row.weights[i]);
            }
          }
        },
        row.columns);
    return bias;
  };

  Packed out;
  out.label.resize(static_cast<size_t>(labels));
  std::iota(out.label.begin(), out.label.end(), 0);
  std::vector<int64_t> sizes(static_cast<size_t>(labels));
  std::vector<float> biases(static_cast<size_t>(labels));
  parallel_items(labels, 256, threads, [&](int64_t l, int) {
    int64_t n = 0;
    biases[static_cast<size_t>(l)] = for_kept(l, [&](int64_t, float) { ++n; });
    sizes[static_cast<size_t>(l)] = n;
  });
  std::stable_sort(out.label.begin(), out.label.end(), [&](int32_t a, int32_t b) {
    return sizes[static_cast<size_t>(a)] > sizes[static_cast<size_t>(b)];
  });
  if (has_bias) {
    for (const int32_t l : out.label) {
      out.bias.push_back(biases[static_cast<size_t>(l)]);
      out.weights += out.bias.back() != 0;
    }
  }

  out.first.push_back(0);
  for (int64_t from = 0; from < labels; from += kPlaces) {
    const int64_t to = std::min(labels, from + kPlaces);
    std::vector<int64_t> start(static_cast<size_t>(columns) + 1);
    const auto of_place = [&](int64_t p) { return out.label[static_cast<size_t>(p)]; };
    for (int64_t p = from; p < to; ++p) {
      for_kept(of_place(p), [&](int64_t c, float) { ++start[static_cast<size_t>(c) + 1]; });
    }
    std::partial_sum(start.begin(), start.end(), start.begin());
    std::vector<uint16_t> place(static_cast<size_t>(start.back()));
    std::vector<uint8_t> code(place.size());
    std::vector<int64_t> next = start;
    for (int64_t p = from; p < to; ++p) {
      for_kept(of_place(p), [&](int64_t c, float w) {
        const auto at = static_cast<size_t>(next[static_cast<size_t>(c)]++);
        place[at] = static_cast<uint16_t>(p - from);
        code[at] = static_cast<uint8_t>(1 + (std::lower_bound(middle, std::end(middle), w) - middle));
      });
    }
    out.weights += start.back();
    const auto list_of = [&](int64_t c) -> Postings {
      const int64_t at = start[static_cast<size_t>(c)];
      return {place.data() + at, code.data() + at, start[static_cast<size_t>(c) + 1] - at};
    };
    std::vector<uint8_t> width(static_cast<size_t>(columns));
    std::vector<int64_t> bytes(static_cast<size_t>(columns) + 1);
    parallel_items(columns, kColumnsAtOnce, threads, [&](int64_t c, int) {
      int64_t of_width[3];
      const Postings list = list_of(c);
      width[static_cast<size_t>(c)] = static_cast<uint8_t>(list.best());
      list.sizes(of_width);
      bytes[static_cast<size_t>(c) + 1] = of_width[width[static_cast<size_t>(c)]];
    });
    std::partial_sum(bytes.begin(), bytes.end(), bytes.begin());
    if (bytes.back() > kMostBytes) throw std::length_error("the model has too many weights to be packed");
    for (int64_t c = 0; c <= columns; ++c) {
      const uint32_t of_list = c < columns ? width[static_cast<size_t>(c)] : 0;
      out.ptr.push_back(static_cast<uint32_t>(bytes[static_cast<size_t>(c)]) << 2 | of_list);
    }
    out.list.resize(static_cast<size_t>(out.first.back() + bytes.back()));
    uint8_t* lists = out.list.data() + out.first.back();
    parallel_items(columns, kColumnsAtOnce, threads, [&](int64_t c, int) {
      list_of(c).write(width[static_cast<size_t>(c)], lists + bytes[static_cast<size_t>(c)]);
    });
    out.first.push_back(out.first.back() + bytes.back());
  }
  return out;
}

void check_packed(const PackedView& p) {
  expect(p.labels >= 0 && p.labels <= std::numeric_limits<int32_t>::max() && p.columns >= 0 &&
             p.columns <= std::numeric_limits<int32_t>::max(),
         "labels or columns are out of range");
  expect(p.label.size() == p.labels, "label has a wrong length");
  expect(p.bias.size() == 0 || (p.bias.size() == p.labels && p.columns > 0), "bias has a wrong length");
  expect(p.level.size() == kLevels, "level has a wrong length");
  expect(p.first.size() == p.blocks() + 1, "first has a wrong length");
  expect(p.ptr.size() / (p.columns + 1) == p.blocks() && p.ptr.size() % (p.columns + 1) == 0,
         "ptr has a wrong length");
  const auto finite = [](float w) { return std::isfinite(w); };
  expect(std::all_of(p.level.begin(), p.level.end(), finite), "a level is not finite");
  expect(p.level[0] == 0, "the first level is not 0");
  expect(std::all_of(p.bias.begin(), p.bias.end(), finite), "a bias is not finite");
  std::vector<bool> seen(static_cast<size_t>(p.labels));
  for (const int32_t l : p.label) {
    expect(l >= 0 && l < p.labels && !seen[static_cast<size_t>(l)], "label is no permutation");
    seen[static_cast<size_t>(l)] = true;
  }
  expect(p.first[0] == 0 && p.first[p.blocks()] == p.list.size(), "first does not cover the lists");
  for (int64_t b = 0; b < p.blocks(); ++b) {
    const int64_t bytes = p.first[b + 1] - p.first[b];
    expect(bytes >= 0 && bytes <= kMostBytes, "first is not ascending");
    const uint32_t* ptr = p.ptr.data() + b * (p.columns + 1);
    expect(ptr[0] >> 2 == 0 && ptr[p.columns] >> 2 == bytes, "ptr does not cover its block");
    for (int64_t c = 0; c < p.columns; ++c) {
      const uint32_t width = ptr[c] & 3, from = ptr[c] >> 2, to = ptr[c + 1] >> 2;
      expect(width < 3 && from <= to && (to - from) % kRecord[width] == 0, "ptr is not ascending");
    }
  }
}

UnpackedRows unpack(const PackedView& p) {
  UnpackedRows out;
  out.indptr.resize(static_cast<size_t>(p.labels) + 1);
  if (!p.labels) return out;  // its file may claim any number of columns
  // Calls fn(label, column, weight) by column, ascending.
  const auto for_weights = [&](auto&& fn) {
    for (int64_t c = 0; c < p.columns; ++c) {
      for (int64_t b = 0; b < p.blocks(); ++b) {
        const uint32_t* ptr = p.ptr.data() + b * (p.columns + 1) + c;
        const uint8_t* lists = p.list.data() + p.first[b];
        for_postings(lists + (ptr[0] >> 2), lists + (ptr[1] >> 2), ptr[0] & 3, kBefore,
                     [&](uint32_t place, uint8_t code) {
                       if (!code) return;
                       expect(place < p.places(b), "a list leaves its block");
                       fn(p.label[b * kPlaces + place], c, p.level[code]);
                     });
      }
    }
    for (int64_t place = 0; place < p.bias.size(); ++place) {
      if (p.bias[place] != 0) fn(p.label[place], p.columns - 1, p.bias[place]);
    }
  };
  for_weights([&](int32_t l, int64_t, float) { ++out.indptr[static_cast<size_t>(l) + 1]; });
  std::partial_sum(out.indptr.begin(), out.indptr.end(), out.indptr.begin());
  out.indices.resize(static_cast<size_t>(out.indptr.back()));
  out.data.resize(out.indices.size());
  std::vector<int64_t> next = out.indptr;
  for_weights([&](int32_t l, int64_t c, float w) {
    const auto at = static_cast<size_t>(next[static_cast<size_t>(l)]++);
    out.indices[at] = static_cast<int32_t>(c);
    out.data[at] = w;
  });
  return out;
}

}  // namespace xmc::predict
