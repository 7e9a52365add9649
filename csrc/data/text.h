// Sparse text, one point per line:
//
//   [label,label,...] feature:value feature:value ...
//
// the Extreme Classification Repository's format without its header line, libsvm multi-label, and (without
// the label field) each half of the two-file form. Fields are separated by spaces or tabs; lines end in \n or
// \r\n, the last one may lack it. A line that starts with a separator, or whose first field has a colon, has
// no labels. Features may come in any order and leave sorted; explicit zeros are kept.
//
// Two passes over line-aligned chunks, both threaded: scan() counts lines and colons, so that parse() writes
// each entry straight to its final place. The result does not depend on chunks or threads, and neither does
// the error: that of the first bad token in the text.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace xmc::data {

enum class Blank { kPoint, kSkip, kError };  // what a line without any field is

struct TextFormat {
  std::string name;             // of the file, for messages
  int64_t first_line = 1;       // number of the first line of the text, for messages
  int64_t first_row = 0;        // points before this text
  int64_t max_rows = -1;        // points of the whole file; only blank lines may follow. -1: no limit
  int64_t n_features = 0;       // ids are in [base, base + n_features)
  int64_t n_labels = 0;         // likewise
  int64_t base = 0;             // id of the first feature and of the first label
  bool label_field = true;      // false: lines hold features only
  bool comments = false;        // a field that starts with # ends the line; lines of nothing else are skipped
  bool sum_duplicates = false;  // add up repeated features, drop repeated labels; false: an error
  Blank blank = Blank::kPoint;
};

// One line-aligned piece of the text. [first_row, first_row + lines) and [first_entry, first_entry + colons)
// are the places reserved for it; rows, entries and labels are what parse() found (never more).
struct Chunk {
  const char* begin;
  const char* end;  // after a \n, and readable for 8 bytes more
  int64_t first_row;
  int64_t lines;
  int64_t first_entry;
  int64_t colons;
  int64_t rows = 0;
  int64_t entries = 0;
  int64_t max_feature = -1;
  int64_t max_label = -1;
  std::vector<int32_t> labels{};
};

struct Scan {
  std::vector<Chunk> chunks;
  int64_t lines = 0;       // upper bound of the rows
  int64_t colons = 0;      // upper bound of the entries
  std::vector<char> tail;  // padded copy of the last lines, where the text ends too early to read ahead
};

Scan scan(std::string_view text, int threads);

// Where parse() writes: sizes[i] entries in row i, label_sizes[i] labels (each scan.lines long); indices and
// values scan.colons long. Rows and entries end up contiguous from 0 on.
struct TextOutput {
  int64_t* sizes;
  int64_t* label_sizes;
  int32_t* indices;
  float* values;
};

struct TextCounts {
  int64_t rows = 0;
  int64_t entries = 0;
  int64_t labels = 0;
  int64_t max_feature = -1;  // largest id found, counted from 0; -1: none
  int64_t max_label = -1;
};

// Throws std::invalid_argument "name:line:column: reason" for the first bad token.
TextCounts parse(Scan& scan, const TextFormat& format, const TextOutput& out, int threads);

// The label ids of all rows in order (scan as left by parse), counts.labels long.
void copy_labels(const Scan& scan, int32_t* labels);

}  // namespace xmc::data
