// Layouts that come from files: what their arrays must be before anything reads them, and their weights by label.
#include <algorithm>
#include <bit>
#include <limits>
#include <stdexcept>
#include <vector>

#include "core/parallel.h"
#include "predict/layout.h"
#include "predict/layout_weights.h"

namespace xmc::predict {
namespace {

constexpr int64_t kMostPlaces = 65536;  // places and slots are 16 bit
constexpr int64_t kMost = std::numeric_limits<int32_t>::max();

void expect(bool holds, const char* what) {
  if (!holds) throw std::invalid_argument(what);
}

int64_t places_of(const LayoutArrays<ArrayView>& a, int64_t b) {
  return std::min(a.block, a.labels - b * a.block);
}
int64_t postings_of(const LayoutArrays<ArrayView>& a, int64_t b) {
  return (b + 1 < a.parts.size ? a.parts[b + 1].first_posting : a.posting.size) - a.parts[b].first_posting;
}

// The lengths of all arrays, and where the blocks begin in them.
void check_sizes(const LayoutArrays<ArrayView>& a) {
  expect(a.labels >= 0 && a.labels <= kMost && a.columns >= 0 && a.columns <= kMost,
         "labels or columns are out of range");
  expect(a.block > 0 && a.block <= kMostPlaces && a.block % kTile == 0, "block is out of range");
  expect(a.label.size == a.labels, "label has a wrong length");
  expect(a.parts.size == a.blocks(), "parts has a wrong length");
  expect(a.entry.size == a.blocks() * a.columns, "entry has a wrong length");
  for (const auto* of_place : {&a.step, &a.error, &a.spread, &a.norm}) {
    expect(of_place->size == a.tiles() * kTile, "a bound has a wrong length");
    const float* begin = of_place->data;
    expect(std::all_of(begin, begin + of_place->size, [](float v) { return v >= 0; }), "a bound is below 0");
  }
  int64_t cells = 0, heavy = 0, slots = 0, postings = 0;
  for (int64_t b = 0; b < a.blocks(); ++b) {
    const LayoutBlock& part = a.parts[b];
    expect(part.first_cell == cells && part.first_heavy == heavy && part.first_slot == slots,
           "parts do not follow each other");
    expect(0 <= part.n_heavy && part.n_heavy <= part.n_dense && part.n_dense <= kMostPlaces,
           "parts have a wrong number of columns");
    expect((b || part.first_posting == 0) && postings <= part.first_posting &&
               part.first_posting <= a.posting.size,
           "parts do not follow each other");
    postings = part.first_posting;
    cells += a.tiles_of(b) * part.n_dense;
    heavy += a.tiles_of(b) * part.n_heavy * kTile;
    slots += part.n_dense;
  }
  expect(a.blocks() || a.posting.size == 0, "posting has a wrong length");
  expect(a.cell.size == cells && a.byte.size == cells * kTile, "cell or byte has a wrong length");
  expect(a.heavy.size == heavy, "heavy has a wrong length");
  expect(a.out_ptr.size == slots + 1, "out_ptr has a wrong length");
}

void check_labels(const LayoutArrays<ArrayView>& a) {
  std::vector<bool> seen(static_cast<size_t>(a.labels));
  for (int64_t p = 0; p < a.labels; ++p) {
    const int32_t l = a.label[p];
    expect(l >= 0 && l < a.labels && !seen[static_cast<size_t>(l)], "label is no permutation");
    seen[static_cast<size_t>(l)] = true;
  }
}

// Each slot has one column, and the lists follow each other.
void check_entries(const LayoutArrays<ArrayView>& a, int64_t b) {
  const LayoutBlock& part = a.parts[b];
  const Posting* postings = a.posting.data + part.first_posting;
  const int64_t size = postings_of(a, b), places = places_of(a, b);
  std::vector<bool> seen(static_cast<size_t>(part.n_dense));
  int64_t dense = 0, next = 0;
  for (int64_t c = 0; c < a.columns; ++c) {
    const int64_t entry = a.entry[b * a.columns + c];
    if (entry >= 0) {
      expect(entry < part.n_dense && !seen[static_cast<size_t>(entry)], "two columns share a slot");
      seen[static_cast<size_t>(entry)] = true;
      ++dense;
    } else if (entry != kEmpty) {
      expect(-2 - entry == next && next < size && next + postings[next].count() < size,
             "posting lists do not follow each other");
      const Posting* p = postings + next + 1;
      next += 1 + int64_t{postings[next].count()};
      bool inside = true;
      for (; p < postings + next; ++p) inside &= p->place < places;
      expect(inside, "a posting list leaves its block");
    }
  }
  expect(dense == part.n_dense && next == size, "entry does not cover its block");
}

void check_cells(const LayoutArrays<ArrayView>& a, int threads) {
  std::vector<uint64_t> first(static_cast<size_t>(a.blocks())), end(first.size());  // weight of each block
  parallel_for(a.blocks(), threads, [&](int64_t b, int) {
    const int64_t n_dense = a.parts[b].n_dense, cells = a.tiles_of(b) * n_dense;
    const Cell* cell = a.cell.data + a.parts[b].first_cell;
    uint64_t weights = cells ? cell[0].first : 0;
    first[static_cast<size_t>(b)] = weights;
    bool fit = true;
    for (int64_t c = 0; c < cells; ++c) {
      fit &= cell[c].first == weights;
      weights += static_cast<uint64_t>(std::popcount(cell[c].mask));
    }
    end[static_cast<size_t>(b)] = weights;
    const int64_t last = places_of(a, b) % kTile;  // places of the last tile, 0: all
    for (int64_t c = cells - n_dense; last && c < cells; ++c) fit &= cell[c].mask >> last == 0;
    expect(fit, "cell does not fit its block");
  });
  uint64_t weights = 0;
  for (int64_t b = 0; b < a.blocks(); ++b) {
    if (!a.parts[b].n_dense) continue;
    expect(first[static_cast<size_t>(b)] == weights, "cell does not fit its block");
    weights = end[static_cast<size_t>(b)];
  }
  expect(weights == static_cast<uint64_t>(a.weight.size), "cell does not cover weight");
}

void check_outliers(const LayoutArrays<ArrayView>& a) {
  expect(a.out_ptr[0] == 0, "out_ptr does not begin at 0");
  for (int64_t s = 0; s + 1 < a.out_ptr.size; ++s) {
    expect(a.out_ptr[s] <= a.out_ptr[s + 1], "out_ptr is not ascending");
  }
  expect(int64_t{a.out_ptr[a.out_ptr.size - 1]} + 1 == a.outlier.size, "out_ptr does not cover outlier");
  for (int64_t b = 0; b < a.blocks(); ++b) {
    const int32_t* ptr = a.out_ptr + a.parts[b].first_slot;
    for (int64_t o = ptr[0]; o < ptr[a.parts[b].n_dense]; ++o) {
      expect(a.outlier[o].place < places_of(a, b), "an outlier leaves its block");
    }
  }
  expect(a.outlier[a.outlier.size - 1].place == 0, "the last outlier is not of place 0");
}

}  // namespace

Layout Layout::open(const LayoutArrays<ArrayView>& a, bool known, int threads) {
  check_sizes(a);
  if (known) return Layout(a);
  check_labels(a);
  parallel_for(a.blocks(), threads, [&](int64_t b, int) { check_entries(a, b); });
  check_cells(a, threads);
  check_outliers(a);
  return Layout(a);
}

UnpackedRows rows_of(const LayoutView& a, int threads) {
  UnpackedRows out;
  out.indptr.resize(static_cast<size_t>(a.labels) + 1);
  const auto next_of = [&](int64_t b, int64_t place) -> int64_t& {  // where the label's next weight goes
    return out.indptr[static_cast<size_t>(a.label[b * a.block + place])];
  };
  parallel_for(a.blocks(), threads, [&](int64_t b, int) {
    for (int64_t c = 0; c < a.columns; ++c) {
      for_weights(a, b, c, [&](int64_t place, float) { ++next_of(b, place); });
    }
  });
  int64_t total = 0;
  for (int64_t& n : out.indptr) {
    const int64_t size = n;
    n = total;
    total += size;
  }
  out.indices.resize(static_cast<size_t>(total));
  out.data.resize(static_cast<size_t>(total));
  parallel_for(a.blocks(), threads, [&](int64_t b, int) {
    std::vector<int32_t> before(static_cast<size_t>(places_of(a, b)), -1);
    for (int64_t c = 0; c < a.columns; ++c) {
      for_weights(a, b, c, [&](int64_t place, float weight) {
        expect(before[static_cast<size_t>(place)] < c, "a label has two weights for a column");
        before[static_cast<size_t>(place)] = static_cast<int32_t>(c);
        const auto at = static_cast<size_t>(next_of(b, place)++);
        out.indices[at] = static_cast<int32_t>(c);
        out.data[at] = weight;
      });
    }
  });
  std::copy_backward(out.indptr.begin(), out.indptr.end() - 1, out.indptr.end());  // ends become beginnings
  out.indptr[0] = 0;
  return out;
}

}  // namespace xmc::predict
