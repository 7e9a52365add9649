// The weights of a layout by column (layout.h).
#pragma once

#include <bit>
#include <cstdint>

#include "predict/layout.h"

namespace xmc::predict {

// Calls fn(place in the block, weight) for each weight of a column in block b.
template <class Fn>
void for_weights(const LayoutView& a, int64_t b, int64_t column, Fn&& fn) {
  const LayoutBlock& part = a.parts[b];
  const int64_t entry = a.entry[b * a.columns + column];
  if (entry == kEmpty) return;
  if (entry < kEmpty) {
    const Posting* p = a.posting + part.first_posting + (-2 - entry);
    for (const Posting* end = p + p->count(); p < end;) {
      ++p;
      fn(int64_t{p->place}, p->weight());
    }
    return;
  }
  for (int64_t t = 0; t < a.tiles_of(b); ++t) {
    const Cell& cell = a.cell[part.first_cell + t * part.n_dense + entry];
    const float* weight = a.weight + cell.first;
    for (uint64_t rest = cell.mask; rest; rest &= rest - 1) {
      fn(t * kTile + std::countr_zero(rest), *weight++);
    }
  }
  const int32_t* list = a.out_ptr + part.first_slot + entry;
  for (int64_t o = list[0]; o < list[1]; ++o) fn(int64_t{a.outlier[o].place}, a.outlier[o].weight());
}

}  // namespace xmc::predict
