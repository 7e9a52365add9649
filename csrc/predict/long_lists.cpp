#include "predict/long_lists.h"

#include <array>
#include <cstring>

#include "core/prefetch.h"

namespace xmc::predict {
namespace {

// Work, in about half cycles: of a posting and of a cell that a row adds; of looking whether a list has a
// weight in a strip. Once for all rows: of a posting and of a cell that are decoded, of a list that has none.
constexpr int64_t kPostingWork = 5, kCellWork = 18, kLookWork = 4;
constexpr size_t kListsAhead = 8;  // whose bytes are prefetched
constexpr int64_t kPostingOnce = 20, kCellOnce = 100, kListOnce = 8;

// Calls fn(place, code) for the postings below `to`.
template <uint32_t width, class Fn>
void read_width(Cursor& c, uint32_t to, Fn&& fn) {
  constexpr int kRecord = width == 0 ? 3 : width == 1 ? 4 : 6;
  const auto gap = [](const uint8_t* p, bool second) -> uint32_t {
    if (width == 0) return second ? p[0] >> 4u : p[0] & 15u;
    if (width == 1) return p[second];
    return p[2 * second] | uint32_t{p[2 * second + 1]} << 8;
  };
  const uint8_t *at = c.at, *end = c.end;
  uint32_t place = c.place, next = c.next;
  bool second = c.second;
  while (next < to) {
    if (!second) {
      fn(place = next, at[kRecord - 2]);
      next += gap(at, true);
      second = next >= to;
      if (second) break;
    }
    fn(place = next, at[kRecord - 1]);
    second = false;
    at += kRecord;
    next = at == end ? kBefore : next + gap(at, false);
  }
  c = {at, end, place, next, width, second};
}

template <class Fn>
void read_below(Cursor& c, uint32_t to, Fn&& fn) {
  if (c.width == 0) {
    read_width<0>(c, to, fn);
  } else if (c.width == 1) {
    read_width<1>(c, to, fn);
  } else {
    read_width<2>(c, to, fn);
  }
}

}  // namespace

void LongLists::begin(int64_t columns) {
  number_.resize(static_cast<size_t>(columns), -1);
  for (const int32_t c : columns_) number_[static_cast<size_t>(c)] = -1;
  columns_.clear();
  cursor_.clear();
  uses_.clear();
}

int32_t LongLists::number(int32_t column, const uint8_t* from, const uint8_t* to, uint32_t width) {
  int32_t& number = number_[static_cast<size_t>(column)];
  if (number < 0) {
    number = static_cast<int32_t>(columns_.size());
    columns_.push_back(column);
    const uint32_t gap = width == 0 ? from[0] & 15u : width == 1 ? from[0] : from[0] | uint32_t{from[1]} << 8;
    cursor_.push_back({from, to, kBefore, kBefore + gap, width, false});
    uses_.push_back(0);
  }
  ++uses_[static_cast<size_t>(number)];
  return number;
}

int64_t LongLists::plan(int64_t needs, int64_t places, int64_t most) {
  needs_ = needs;
  some_.assign(columns_.size(), 1);
  if (columns_.empty()) return 0;
  if (cell_.size() < std::ssize(columns_) * kStrip) cell_ = Buffer<uint16_t>(std::ssize(columns_) * kStrip);
  if (places <= most) return places;
  rest_ = cursor_;
  int64_t to = 0;
  for (bool worth = true; worth && to < most;) {
    to += kStrip;
    int64_t postings = 0, cells = 0, by_posting = 0, by_cell = 0;
    for (size_t l = 0; l < columns_.size(); ++l) {
      if (rest_[l].next >= to) continue;
      int64_t read = 0;
      read_below(rest_[l], static_cast<uint32_t>(to), [&](uint32_t, uint8_t) { ++read; });
      postings += read;
      ++cells;
      by_posting += read * uses_[l];
      by_cell += uses_[l];
    }
    const int64_t by_row = is_full(by_cell) ? needs * kCellWork : by_cell * kCellWork + needs * kLookWork;
    const int64_t once = postings * kPostingOnce + cells * kCellOnce + std::ssize(columns_) * kListOnce;
    worth = by_posting * kPostingWork > by_row + once;
  }
  return to;
}

// Whether it is less work to add the cells without weights than to look for them.
bool LongLists::is_full(int64_t by_cell) const {
  return (needs_ - by_cell) * kCellWork < needs_ * kLookWork;
}

bool LongLists::decode(uint32_t to, const uint16_t* level) {
  static constexpr auto kAt = [] {
    std::array<uint8_t, kStrip> at{};
    for (uint32_t lane = 0; lane < kStrip; ++lane) at[lane] = static_cast<uint8_t>(cell_place(lane));
    return at;
  }();
  int64_t by_cell = 0;
  for (size_t l = 0; l < columns_.size(); ++l) {
    if (l + kListsAhead < columns_.size()) prefetch(cursor_[l + kListsAhead].at);
    const bool has = cursor_[l].next < to;
    uint16_t* cell = cell_.data() + static_cast<int64_t>(l) * kStrip;
    if (has || some_[l]) std::memset(cell, 0, kStrip * sizeof(uint16_t));
    some_[l] = has;
    if (!has) continue;
    by_cell += uses_[l];
    read_below(cursor_[l], to, [&](uint32_t place, uint8_t code) {
      cell[kAt[place % kStrip]] |= level[code];  // code 0 may share the place of another
    });
  }
  return is_full(by_cell);
}

}  // namespace xmc::predict
