// Tables of text as columns: delimited text (CSV, TSV) and JSON lines, split in parallel.
//
// CSV follows RFC 4180 and, where that is silent, Python's csv module: a field that starts with a quote runs to
// the next single quote, "" inside it is one quote, text after the closing quote is taken as it is, a quote
// inside an unquoted field is a character. Rows end in \n, \r\n or \r; empty lines are skipped. Every row must
// have the same number of fields.
//
// JSON lines: one object per line. A field is named by its path, "a.b" for {"a": {"b": ...}} (or a key that
// contains the dot); the last of two equal keys counts. NaN and Infinity are accepted as Python writes them.
// Lone surrogates (\ud800) become three bytes, which Python decodes with "surrogatepass".
//
// How it runs in parallel: the text is cut into chunks. A first pass counts the quotes of each
// chunk; an odd number before a chunk means that it starts inside a quoted field. This guesses the first row of
// every chunk, and all chunks are split at the same time. The guess is wrong only if quotes stand inside
// unquoted fields; then a chunk does not start where the one before ended, and it is split again from there. The
// result never depends on the guess.
//
// Only the chosen columns are kept; their bytes are checked to be UTF-8.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace xmc::data {

enum class Role : uint8_t { kText, kLabels };  // labels may be lists and integers, texts only strings

struct TableFormat {
  bool json = false;
  std::string name;                // of the file, for messages
  int64_t first_line = 1;          // number of the first line of the text, for messages
  char separator = ',';            // CSV
  int64_t n_fields = 0;            // CSV: fields of every row
  std::vector<int64_t> positions;  // CSV: position of each chosen column
  std::vector<std::string> paths;  // the names of the chosen columns; JSON: their paths
  std::vector<Role> roles;         // JSON: what they hold
  bool final = true;               // false: more text follows, an unfinished last row is left for it
  int64_t chunk = 1 << 20;         // bytes split by one thread at a time
};

// Row i has the values rows[i] .. rows[i+1]-1; value k is bytes[offsets[k], offsets[k+1]), UTF-8. Texts and CSV
// fields have one value per row, so rows stays empty.
struct TextColumn {
  std::vector<int64_t> rows;
  std::vector<int64_t> offsets;
  std::unique_ptr<char[]> bytes;  // offsets.back() long
  int64_t missing = 0;            // rows without the field, or with null
  int64_t lists = 0;              // rows with a list
  int64_t integers = 0;           // values that are JSON integers
};

struct Table {
  int64_t rows = 0;
  int64_t blank = 0;     // empty lines
  int64_t consumed = 0;  // bytes of the finished rows
  int64_t lines = 0;     // newlines in them
  std::vector<TextColumn> columns;
};

// Throws std::invalid_argument "name:line: reason" for the first error.
Table split_table(std::string_view text, const TableFormat& format, int threads);

// The fields of the first row, and how many bytes it has with its end.
struct Record {
  std::vector<std::string> fields;
  int64_t size = 0;
};
Record first_record(std::string_view text, char separator, const std::string& name);

// The lines of a text as a column, without their ends (\n or \r\n), checked to be UTF-8.
TextColumn split_lines(std::string_view text, const std::string& name, int64_t first_line, int threads);

// Rows of labels from strings: each text of the column split at `separator` (none: one label), blanks at both
// ends of a label removed, empty labels dropped, repeated ones merged. names[ids[k]], indptr[i] <= k <
// indptr[i+1], are the labels of row i; names are numbered in order of their first appearance.
struct LabelRows {
  std::vector<int64_t> indptr;
  std::vector<int32_t> ids;
  std::vector<std::string> names;
  int64_t repeated = 0;
};
LabelRows split_labels(const char* bytes, const int64_t* offsets, const int64_t* rows, int64_t n_rows,
                       std::string_view separator);

}  // namespace xmc::data
