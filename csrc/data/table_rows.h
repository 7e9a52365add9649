// Splitting one row of a table (table.h): where its fields begin and end, and what their escapes stand for.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "data/diagnose.h"
#include "data/table.h"

namespace xmc::data {

// A value in the file: `raw` bytes from `begin` on, `size` bytes when escapes are resolved. raw == size: no
// escapes. Values of 4 GiB or more are refused.
struct Field {
  const char* begin;
  uint32_t raw;
  uint32_t size;
};

// The rows of one chunk.
struct RowSink {
  enum class Kind : uint8_t { kMissing, kOne, kList };
  struct Column {
    std::vector<Field> fields;
    std::vector<int32_t> per_row;  // JSON labels: values of each row
    int64_t missing = 0;
    int64_t lists = 0;
    int64_t integers = 0;
    size_t before = 0;            // JSON: fields before the row that is being read
    int64_t integers_before = 0;  // likewise
    Kind kind = Kind::kMissing;   // what that row has
  };
  std::vector<Column> columns;
  int64_t rows = 0;
  int64_t blank = 0;
  std::string error;               // empty: none
  const char* error_at = nullptr;  // where, to find its line

  void fail(const char* at, std::string reason);
};

// Both read the row at p < end and return the start of the next one; null if the row is not finished before
// `end` (only if !format.final, else that is an error) or if sink.error was set. Then columns may hold some
// fields of the row; sink.rows says how many rows count.
const char* csv_row(const char* p, const char* end, const TableFormat& format, const int32_t* slots,
                    RowSink& sink);
const char* json_row(const char* p, const char* end, const TableFormat& format, RowSink& sink);

// Writes field.size bytes.
void unescape_csv(const Field& field, char* out);
void unescape_json(const Field& field, char* out);

}  // namespace xmc::data
