#include "predict/packed.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <string>
#include <variant>

#include "core/parallel.h"

namespace xmc::predict {
namespace {

constexpr uint32_t kMostGap[] = {15, 255, 65535};
constexpr int64_t kMostBytes = int64_t{1} << 29;  // of a block's lists
constexpr int64_t kColumnsAtOnce = 1024;          // of a task
// Tiles are added faster than single postings: so many times the bytes they may take.
constexpr double kTileBytes = 1.15;
constexpr uint32_t kStartsWithTiles = 4;

int64_t bytes_of(int width, int64_t postings) {
  return width == 0 ? (3 * postings + 1) / 2 : width == 1 ? 2 * postings : 3 * postings;
}

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

// How a list is coded.
struct Coding {
  int64_t tiles = 0, bytes = 0;
  int width = 0;
  uint32_t flags() const { return static_cast<uint32_t>(width) | (tiles ? kStartsWithTiles : 0); }
};

// A list before it is coded.
class PostingList {
 public:
  PostingList(const uint16_t* place, const int8_t* q, int64_t n) : place_(place), q_(q), n_(n) {}

  Coding best() const {
    Coding best;
    double least = std::numeric_limits<double>::infinity();
    // From the last tile to the first: the postings from i on come after `tiles` tiles.
    int64_t fillers[3] = {0, 0, 0};  // of those after posting i
    int64_t head = 0;                // bytes of the tiles
    if (n_) head = 2 + n_ + 8 * (place_[n_ - 1] / kTile + 1);
    for (int64_t i = n_, tiles = n_ ? place_[n_ - 1] / kTile + 1 : 0;; --tiles) {
      const int64_t of_head = tiles ? head : 0;
      for (int w = 0; w < 3; ++w) {
        const int64_t first = i < n_ ? (place_[i] - tiles * kTile) / kMostGap[w] : 0;
        const int64_t rest = bytes_of(w, n_ - i + fillers[w] + first);
        const double cost = static_cast<double>(of_head) + kTileBytes * static_cast<double>(rest);
        if (cost < least) {
          least = cost;
          best = {tiles, of_head + rest, w};
        }
      }
      if (!tiles) return best;
      for (head -= 8; i > 0 && place_[i - 1] >= (tiles - 1) * kTile; --i, --head) {
        if (i == n_) continue;
        for (int w = 0; w < 3; ++w) fillers[w] += (place_[i] - place_[i - 1] - 1) / kMostGap[w];
      }
    }
  }

  void write(const Coding& coding, uint8_t* to) const {
    int64_t i = 0;
    uint8_t* end = to + coding.bytes;
    if (coding.tiles) {
      *to++ = static_cast<uint8_t>(coding.tiles);
      *to++ = static_cast<uint8_t>(coding.tiles >> 8);
      for (int64_t t = 0; t < coding.tiles; ++t) to = write_tile(t, i, to);
    }
    const Postings p = postings_of(to, end, static_cast<uint32_t>(coding.width));
    auto* gaps = const_cast<uint8_t*>(p.gap);
    auto* codes = const_cast<uint8_t*>(p.q);
    int64_t done = 0, before = coding.tiles * kTile - 1;
    const auto put = [&](uint32_t gap, int8_t q) {
      if (coding.width == 0) {
        gaps[done / 2] = static_cast<uint8_t>(gaps[done / 2] | gap << done % 2 * 4);
      } else if (coding.width == 1) {
        gaps[done] = static_cast<uint8_t>(gap);
      } else {
        gaps[2 * done] = static_cast<uint8_t>(gap);
        gaps[2 * done + 1] = static_cast<uint8_t>(gap >> 8);
      }
      codes[done++] = static_cast<uint8_t>(q);
    };
    for (; i < n_; before = place_[i++]) {
      auto left = static_cast<uint32_t>(place_[i] - before);
      for (const uint32_t most = kMostGap[coding.width]; left > most; left -= most) put(most, 0);
      put(left, q_[i]);
    }
  }

 private:
  const uint16_t* place_;
  const int8_t* q_;
  int64_t n_;

  uint8_t* write_tile(int64_t tile, int64_t& i, uint8_t* to) const {
    uint64_t mask = 0;
    int8_t by_bit[kTile];
    for (; i < n_ && place_[i] / kTile == tile; ++i) {
      const int64_t bit = byte_place(place_[i] % kTile);
      mask |= uint64_t{1} << bit;
      by_bit[bit] = q_[i];
    }
    for (int byte = 0; byte < 8; ++byte) *to++ = static_cast<uint8_t>(mask >> 8 * byte);
    for (; mask; mask &= mask - 1) *to++ = static_cast<uint8_t>(by_bit[std::countr_zero(mask)]);
    return to;
  }
};

// Calls fn(place, q) for the postings of a list.
template <class Fn>
void for_postings(const PackedView& p, int64_t b, int64_t column, Fn&& fn) {
  PackedList list{};
  list.open(p, b, column, chunk_count(p.places(b), kTile));
  for (int64_t t = 0; t < list.tiles; ++t) {
    for (uint64_t mask = read_mask(list.at); mask; mask &= mask - 1) {
      fn(t * kTile + lane_of(std::countr_zero(mask)), static_cast<int8_t>(*list.at++));
    }
    list.at = std::min(list.at, list.end);
  }
  const Postings rest = postings_of(list.at, list.end, list.width);
  int64_t place = list.tiles * kTile - 1;
  for (int64_t i = 0; i < rest.n; ++i) {
    fn(place += gap_at(rest.gap, list.width, i), static_cast<int8_t>(rest.q[i]));
  }
}

void expect(bool holds, const char* what) {
  if (!holds) throw std::invalid_argument(std::string("the packed model is damaged: ") + what);
}

}  // namespace

Packed pack(int64_t labels, int64_t columns, const std::vector<LabelBlock>& blocks, bool has_bias,
            float delta, int threads) {
  const std::vector<LabelRow> rows = rows_of(labels, blocks);
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
  std::vector<float> biases(static_cast<size_t>(labels)), steps(static_cast<size_t>(labels));
  const auto rounded = [](float w, float step) { return static_cast<int>(std::nearbyint(w / double{step})); };
  parallel_items(labels, 256, threads, [&](int64_t l, int) {
    float most = 0;
    biases[static_cast<size_t>(l)] =
        for_kept(l, [&](int64_t, float w) { most = std::max(most, std::abs(w)); });
    const float step = steps[static_cast<size_t>(l)] =
        std::max(most / 127, std::numeric_limits<float>::min());
    for_kept(l, [&](int64_t, float w) { sizes[static_cast<size_t>(l)] += rounded(w, step) != 0; });
  });
  std::stable_sort(out.label.begin(), out.label.end(), [&](int32_t a, int32_t b) {
    return sizes[static_cast<size_t>(a)] > sizes[static_cast<size_t>(b)];
  });
  for (const int32_t l : out.label) {
    out.step.push_back(steps[static_cast<size_t>(l)]);
    if (has_bias) {
      out.bias.push_back(biases[static_cast<size_t>(l)]);
      out.weights += out.bias.back() != 0;
    }
  }

  out.first.push_back(0);
  for (int64_t from = 0; from < labels; from += kPlaces) {
    const int64_t to = std::min(labels, from + kPlaces);
    std::vector<int64_t> start(static_cast<size_t>(columns) + 1);
    // Calls fn(column, q) for the label at place p.
    const auto for_rounded = [&](int64_t p, auto&& fn) {
      const float step = out.step[static_cast<size_t>(p)];
      for_kept(out.label[static_cast<size_t>(p)], [&](int64_t c, float w) {
        if (const int q = rounded(w, step)) fn(c, q);
      });
    };
    for (int64_t p = from; p < to; ++p) {
      for_rounded(p, [&](int64_t c, int) { ++start[static_cast<size_t>(c) + 1]; });
    }
    std::partial_sum(start.begin(), start.end(), start.begin());
    std::vector<uint16_t> place(static_cast<size_t>(start.back()));
    std::vector<int8_t> code(place.size());
    std::vector<int64_t> next = start;
    for (int64_t p = from; p < to; ++p) {
      for_rounded(p, [&](int64_t c, int q) {
        const auto at = static_cast<size_t>(next[static_cast<size_t>(c)]++);
        place[at] = static_cast<uint16_t>(p - from);
        code[at] = static_cast<int8_t>(q);
      });
    }
    out.weights += start.back();
    const auto list_of = [&](int64_t c) -> PostingList {
      const int64_t at = start[static_cast<size_t>(c)];
      return {place.data() + at, code.data() + at, start[static_cast<size_t>(c) + 1] - at};
    };
    std::vector<Coding> coding(static_cast<size_t>(columns) + 1);
    parallel_items(columns, kColumnsAtOnce, threads,
                   [&](int64_t c, int) { coding[static_cast<size_t>(c)] = list_of(c).best(); });
    std::vector<int64_t> offset(1);
    for (const Coding& of : coding) {
      out.ptr.push_back(static_cast<uint32_t>(offset.back()) << 3 | of.flags());
      offset.push_back(offset.back() + of.bytes);
      if (offset.back() >= kMostBytes) throw std::length_error("the model has too many weights to be packed");
    }
    out.list.resize(static_cast<size_t>(out.first.back() + offset.back()));
    uint8_t* lists = out.list.data() + out.first.back();
    parallel_items(columns, kColumnsAtOnce, threads, [&](int64_t c, int) {
      list_of(c).write(coding[static_cast<size_t>(c)], lists + offset[static_cast<size_t>(c)]);
    });
    out.first.push_back(out.first.back() + offset.back());
  }
  out.list.resize(out.list.size() + kAfter);
  return out;
}

void check_packed(const PackedView& p) {
  expect(p.labels >= 0 && p.labels <= std::numeric_limits<int32_t>::max() && p.columns >= 0 &&
             p.columns <= std::numeric_limits<int32_t>::max(),
         "labels or columns are out of range");
  expect(p.label.size() == p.labels, "label has a wrong length");
  expect(p.bias.size() == 0 || (p.bias.size() == p.labels && p.columns > 0), "bias has a wrong length");
  expect(p.step.size() == p.labels, "step has a wrong length");
  expect(p.first.size() == p.blocks() + 1, "first has a wrong length");
  expect(p.ptr.size() / (p.columns + 1) == p.blocks() && p.ptr.size() % (p.columns + 1) == 0,
         "ptr has a wrong length");
  const auto finite = [](float w) { return std::isfinite(w); };
  expect(std::all_of(p.step.begin(), p.step.end(), finite), "a step is not finite");
  expect(std::all_of(p.bias.begin(), p.bias.end(), finite), "a bias is not finite");
  std::vector<bool> seen(static_cast<size_t>(p.labels));
  for (const int32_t l : p.label) {
    expect(l >= 0 && l < p.labels && !seen[static_cast<size_t>(l)], "label is no permutation");
    seen[static_cast<size_t>(l)] = true;
  }
  expect(p.first[0] == 0 && p.first[p.blocks()] == p.list.size() - kAfter, "first does not cover the lists");
  for (int64_t b = 0; b < p.blocks(); ++b) {
    const int64_t bytes = p.first[b + 1] - p.first[b];
    expect(bytes >= 0 && bytes < kMostBytes, "first is not ascending");
    const uint32_t* ptr = p.ptr.data() + b * (p.columns + 1);
    expect(ptr[0] >> 3 == 0 && ptr[p.columns] >> 3 == bytes, "ptr does not cover its block");
    for (int64_t c = 0; c < p.columns; ++c) {
      expect((ptr[c] & 3) < 3 && ptr[c] >> 3 <= ptr[c + 1] >> 3, "ptr is not ascending");
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
        for_postings(p, b, c, [&](int64_t place, int8_t q) {
          if (!q) return;
          expect(place >= 0 && place < p.places(b), "a list leaves its block");
          const int64_t of_all = b * kPlaces + place;
          fn(p.label[of_all], c, static_cast<float>(q) * p.step[of_all]);
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
