// Fuzz target of the table readers (csrc/data/table.h): no crash, no read out of bounds, no leak; the same
// result or error for any chunk size and number of threads, and for a text that comes in two blocks. The first
// byte chooses the format, the second where the blocks meet.
//
// With libFuzzer (-DXMC_LIBFUZZER) or with the main below: fuzz_table SECONDS [SEED].
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/rng.h"
#include "data/table.h"
#include "data/utf8.h"
#include "drive.h"

namespace {

using namespace xmc::data;

void check(bool right, const char* what) {
  if (right) return;
  std::fprintf(stderr, "%s\n", what);
  std::abort();
}

struct Result {
  std::string error;
  int64_t consumed = 0;
  int64_t blank = 0;
  std::vector<std::vector<std::string>> values;  // [column][value]
  std::vector<std::vector<int64_t>> rows;        // [column]
  bool operator==(const Result&) const = default;
};

Result split(std::string_view text, TableFormat format, int64_t chunk, int threads) {
  format.chunk = chunk;
  Result out;
  try {
    const Table table = split_table(text, format, threads);
    out.consumed = table.consumed;
    out.blank = table.blank;
    for (const TextColumn& column : table.columns) {
      auto& values = out.values.emplace_back();
      for (size_t k = 0; k + 1 < column.offsets.size(); ++k) {
        values.emplace_back(column.bytes.get() + column.offsets[k],
                            column.bytes.get() + column.offsets[k + 1]);
      }
      check(format.json || static_cast<int64_t>(values.size()) == table.rows, "not one value per row");
      out.rows.push_back(column.rows);
      split_labels(column.bytes.get(), column.offsets.data(),
                   column.rows.empty() ? nullptr : column.rows.data(), table.rows, "|");
    }
  } catch (const std::invalid_argument& error) {
    out.error = error.what();
  }
  return out;
}

void run(const uint8_t* bytes, size_t size) {
  if (size < 2) return;
  TableFormat format;
  format.name = "file";
  format.json = bytes[0] & 1;
  format.n_fields = 1 + (bytes[0] >> 1 & 3);
  format.separator = bytes[0] & 8 ? '\t' : ',';
  if (format.json) {
    format.paths = {"a", "b.c"};
    format.roles = {Role::kText, Role::kLabels};
  } else {
    format.positions = {0, format.n_fields - 1};
    format.paths = {"x", "y"};
    if (format.n_fields == 1) {
      format.positions.pop_back();
      format.paths.pop_back();
    }
  }
  const size_t n = size - 2;
  const std::unique_ptr<char[]> copy(new char[n]);  // its end is where the sanitizer looks
  for (size_t k = 0; k < n; ++k) copy[k] = static_cast<char>(bytes[k + 2]);
  const std::string_view text(copy.get(), n);
  const Result whole = split(text, format, 1 << 20, 1);
  for (const int64_t chunk : {1, 3, 16}) check(split(text, format, chunk, 2) == whole, "chunks differ");
  if (whole.error.empty()) check(whole.consumed == static_cast<int64_t>(n), "rows are left over");
  format.final = false;
  const size_t cut = std::min<size_t>(bytes[1], n);
  const std::unique_ptr<char[]> front(new char[cut]);
  for (size_t k = 0; k < cut; ++k) front[k] = text[k];
  Result first = split({front.get(), cut}, format, 5, 2);
  if (!first.error.empty()) {
    check(!whole.error.empty(), "an error in a block only");
  } else if (whole.error.empty()) {
    format.final = true;
    const Result second = split(text.substr(static_cast<size_t>(first.consumed)), format, 7, 2);
    check(second.error.empty(), "an error in the second block only");
    for (size_t c = 0; c < whole.values.size(); ++c) {
      auto joined = first.values[c];
      joined.insert(joined.end(), second.values[c].begin(), second.values[c].end());
      check(joined == whole.values[c], "blocks differ");
    }
    check(first.blank + second.blank == whole.blank, "empty lines differ");
  }
  try {
    const TextColumn lines = split_lines(text, "file", 1, 2);
    check(!find_invalid_utf8(text), "lines that are not UTF-8");
  } catch (const std::invalid_argument&) {
    check(find_invalid_utf8(text) != nullptr, "UTF-8 lines are refused");
  }
  try {
    check(first_record(text, format.separator, "file").size <= static_cast<int64_t>(n), "a record too long");
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
  static const std::vector<std::string> csv = {"a",  ",",    "\t",      "\n",       "\r\n", "\r",
                                               "\"", "\"\"", "\"x,y\"", "\xc3\xa4", "\xff", "a,b\n"};
  static const std::vector<std::string> json = {"{\"a\":\"x\",\"b\":{\"c\":[1,2]}}\n",
                                                "{",
                                                "}",
                                                "[",
                                                "]",
                                                "\"a\"",
                                                "\"b\":",
                                                "\"c\":",
                                                ",",
                                                ":",
                                                "\"\\u00e4\\ud83d\\ude00\\n\"",
                                                "\\",
                                                "null",
                                                "-1.5e3",
                                                "7",
                                                "NaN",
                                                "\n",
                                                " ",
                                                "\xc3\xa4",
                                                "{\"a\":\"q\",\"b\":{\"c\":[\"y|z\",null]},\"a\":null}\n"};
  return drive(argc, argv, [](xmc::Rng& rng) {
    std::string input{static_cast<char>(rng.below(16)), static_cast<char>(rng.below(120))};
    const auto& pieces = input[0] & 1 ? json : csv;
    for (uint32_t k = rng.below(40); k > 0; --k) {
      input += rng.below(20) == 0 ? std::string(1, static_cast<char>(rng.below(256)))
                                  : pieces[rng.below(static_cast<uint32_t>(pieces.size()))];
    }
    return input;
  });
}
#endif
