#include "data/write.h"

#include <algorithm>
#include <charconv>
#include <vector>

#include "core/parallel.h"

namespace xmc::data {
namespace {

constexpr int64_t kRows = 256;   // rows per block
constexpr size_t kLongest = 32;  // characters of an id, a colon, a float and two separators

// Ids and floats need at most 10 and 15 characters ("-1.17549435e-38").
void format_row(const CsrView<int32_t, float>& x, const CsrView<int32_t, float>& y, bool labels, int64_t row,
                std::string& out) {
  char text[kLongest];
  char* const end = text + kLongest;
  if (labels) {
    for (int64_t k = y.begin(row); k < y.end(row); ++k) {
      char* p = text;
      if (k > y.begin(row)) *p++ = ',';
      p = std::to_chars(p, end, y.indices[k]).ptr;
      out.append(text, p);
    }
  }
  for (int64_t k = x.begin(row); k < x.end(row); ++k) {
    char* p = text;
    if (labels || k > x.begin(row)) *p++ = ' ';
    p = std::to_chars(p, end, x.indices[k]).ptr;
    *p++ = ':';
    p = std::to_chars(p, end, x.data[k]).ptr;
    out.append(text, p);
  }
  out += '\n';
}

}  // namespace

std::string format_rows(const CsrView<int32_t, float>& x, const CsrView<int32_t, float>& y, bool labels,
                        int64_t first, int64_t last, int threads) {
  const int64_t blocks = chunk_count(last - first, kRows);
  std::vector<std::string> parts(static_cast<size_t>(blocks));
  parallel_for(blocks, threads, [&](int64_t block, int) {
    const int64_t begin = first + block * kRows;
    for (int64_t row = begin; row < std::min(begin + kRows, last); ++row) {
      format_row(x, y, labels, row, parts[static_cast<size_t>(block)]);
    }
  });
  size_t size = 0;
  for (const auto& part : parts) size += part.size();
  std::string out;
  out.reserve(size);
  for (const auto& part : parts) out += part;
  return out;
}

}  // namespace xmc::data
