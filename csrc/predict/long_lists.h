// The long lists of the small form (packed.h) that a batch of rows needs: numbered, read strip by strip, and
// decoded to cells where that is less work.
#pragma once

#include <cstdint>
#include <vector>

#include "core/buffer.h"
#include "predict/packed.h"

namespace xmc::predict {

// How far a list is read: the next posting, at place `next` (kBefore: none), is the first or second of the
// record at `at`.
struct Cursor {
  const uint8_t *at, *end;
  uint32_t place;  // of the posting before
  uint32_t next;
  uint32_t width;
  bool second;
};

class LongLists {
 public:
  // Forgets all lists; those of another block or batch come.
  void begin(int64_t columns);
  // The number of a column's list, which one more row needs.
  int32_t number(int32_t column, const uint8_t* from, const uint8_t* to, uint32_t width);

  // How many of `places`, from the first on, get cells: all, if `most` allow it, or else those where cells are
  // less work. `needs`: lists that all rows need together.
  int64_t plan(int64_t needs, int64_t places, int64_t most);
  // After plan(): where a list goes on behind the places with cells.
  const Cursor& rest(int32_t number) const { return rest_[static_cast<size_t>(number)]; }

  // Decodes the next strip, which ends before place `to`. Whether it is full: nearly all of the rows' lists
  // have a weight in it, so that none need be left out.
  bool decode(uint32_t to, const uint16_t* level);
  const uint16_t* cells() const { return cell_.data(); }
  const int32_t* some() const { return some_.data(); }

 private:
  bool is_full(int64_t by_cell) const;

  std::vector<int32_t> number_;   // by column, -1: none
  std::vector<int32_t> columns_;  // by number, as the next ones
  std::vector<Cursor> cursor_, rest_;
  std::vector<int64_t> uses_;  // rows that need the list
  std::vector<int32_t> some_;  // whether it has a weight in the strip
  Buffer<uint16_t> cell_;
  int64_t needs_ = 0;
};

}  // namespace xmc::predict
