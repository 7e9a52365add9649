#include "data/text.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "core/parallel.h"
#include "data/diagnose.h"
#include "data/number.h"

namespace xmc::data {
namespace {

constexpr size_t kPad = 8;  // bytes the number parsers may read past a line
constexpr size_t kChunk = size_t{1} << 20;

bool is_space(char c) {
  return c == ' ' || c == '\t';
}

// The loops vectorise: 64 byte-wide counters, emptied before they can overflow.
void count_bytes(const char* p, size_t n, int64_t& lines, int64_t& colons) {
  while (n > 0) {
    uint8_t line[64] = {};
    uint8_t colon[64] = {};
    size_t done = 0;
    for (int k = 0; k < 255 && n - done >= 64; ++k, done += 64) {
      for (int j = 0; j < 64; ++j) line[j] = static_cast<uint8_t>(line[j] + (p[done + j] == '\n'));
      for (int j = 0; j < 64; ++j) colon[j] = static_cast<uint8_t>(colon[j] + (p[done + j] == ':'));
    }
    if (done == 0) {
      for (; done < n; ++done) {
        lines += p[done] == '\n';
        colons += p[done] == ':';
      }
    }
    for (int j = 0; j < 64; ++j) {
      lines += line[j];
      colons += colon[j];
    }
    p += done;
    n -= done;
  }
}

size_t line_start_after(std::string_view text, size_t at) {
  const size_t end = text.find('\n', at);
  return end == text.npos ? text.size() : end + 1;
}

// Where the padded copy begins: the start of the last line that ends at least kPad before the end.
size_t tail_start(std::string_view text) {
  if (text.size() <= kPad) return 0;
  const size_t end = text.rfind('\n', text.size() - kPad - 1);
  return end == text.npos ? 0 : end + 1;
}

// Parses the lines of one chunk.
class Parser {
 public:
  Parser(Chunk& chunk, const TextFormat& format, const TextOutput& out)
      : chunk_(chunk),
        format_(format),
        base_(static_cast<uint64_t>(format.base)),
        indices_(out.indices + chunk.first_entry),
        values_(out.values + chunk.first_entry),
        sizes_(out.sizes + chunk.first_row),
        label_sizes_(out.label_sizes + chunk.first_row) {}

  void run() {
    const char* p = chunk_.begin;
    for (int64_t line = 0; p < chunk_.end; ++line) {
      const bool full =
          format_.max_rows >= 0 && format_.first_row + chunk_.first_row + line >= format_.max_rows;
      const char* next = full ? skip_blank(p) : parse_line(p);
      if (!next) fail(p, line, full);
      p = next;
    }
  }

 private:
  [[noreturn]] void fail(const char* p, int64_t line, bool full) const {
    const char* end = static_cast<const char*>(std::memchr(p, '\n', static_cast<size_t>(chunk_.end - p)));
    if (end > p && end[-1] == '\r') --end;
    const std::string_view text(p, static_cast<size_t>(end - p));
    const int64_t number = format_.first_line + chunk_.first_row + line;
    if (full) {
      throw std::invalid_argument(
          complaint(format_, number, 1,
                    "more points than the " + std::to_string(format_.max_rows) + " of the header", text));
    }
    const bool blank = text.find_first_not_of(" \t") == text.npos;
    throw std::invalid_argument(blank ? complaint(format_, number, 1, "blank line", text)
                                      : diagnose(text, format_, number));
  }

  // The start of the next line if only blanks are left on this one, else null.
  static const char* skip_blank(const char* p) {
    while (is_space(*p)) ++p;
    p += *p == '\r';
    return *p == '\n' ? p + 1 : nullptr;
  }

  // The start of the next line, or null for a line that is not right.
  const char* parse_line(const char* p) {
    if (format_.blank != Blank::kPoint) {
      if (const char* next = skip_blank(p)) return format_.blank == Blank::kSkip ? next : nullptr;
    }
    const bool whole_comment = format_.comments && starts_comment(p);
    const size_t first_label = chunk_.labels.size();
    if (format_.label_field && is_digit(*p) && !(p = parse_labels(p, first_label))) return nullptr;
    const int64_t first = chunk_.entries;
    if (!(p = parse_features(p, first))) return nullptr;
    if (whole_comment) return p;
    label_sizes_[chunk_.rows] = static_cast<int64_t>(chunk_.labels.size() - first_label);
    sizes_[chunk_.rows] = chunk_.entries - first;
    ++chunk_.rows;
    return p;
  }

  static bool starts_comment(const char* p) {
    while (is_space(*p)) ++p;
    return *p == '#';
  }

  // Stops after the label field; or where it began, if it is a feature.
  const char* parse_labels(const char* p, size_t first) {
    const char* const start = p;
    bool sorted = true;
    int64_t previous = -1;
    for (;;) {
      uint64_t id;
      if (!(p = parse_id(p, id))) return nullptr;
      if (*p == ':' && chunk_.labels.size() == first) return start;
      id -= base_;
      if (id >= static_cast<uint64_t>(format_.n_labels)) return nullptr;
      chunk_.labels.push_back(static_cast<int32_t>(id));
      sorted &= static_cast<int64_t>(id) > previous;
      previous = static_cast<int64_t>(id);
      if (*p != ',') break;
      ++p;
    }
    if (!is_space(*p) && *p != '\n' && *p != '\r') return nullptr;
    if (!sorted && !sort_labels(first)) return nullptr;
    chunk_.max_label = std::max<int64_t>(chunk_.max_label, chunk_.labels.back());
    return p;
  }

  bool sort_labels(size_t first) {
    const auto begin = chunk_.labels.begin() + static_cast<std::ptrdiff_t>(first);
    std::sort(begin, chunk_.labels.end());
    const auto end = std::unique(begin, chunk_.labels.end());
    if (end != chunk_.labels.end() && !format_.sum_duplicates) return false;
    chunk_.labels.erase(end, chunk_.labels.end());
    return true;
  }

  const char* parse_features(const char* p, int64_t first) {
    const auto n_features = static_cast<uint64_t>(format_.n_features);
    bool sorted = true;
    int64_t previous = -1;
    int64_t k = first;
    for (;;) {
      while (is_space(*p)) ++p;
      if (*p == '\n') break;
      uint64_t id;
      const char* const q = parse_id(p, id);
      if (!q) {
        if (!(p = line_end(p))) return nullptr;
        break;
      }
      id -= base_;
      if (*q != ':' || id >= n_features) return nullptr;
      p = parse_value(q + 1, values_[k]);
      if (!p || (!is_space(*p) && *p != '\n' && *p != '\r')) return nullptr;
      indices_[k] = static_cast<int32_t>(id);
      ++k;
      sorted &= static_cast<int64_t>(id) > previous;
      previous = static_cast<int64_t>(id);
    }
    chunk_.entries = k;
    if (!sorted && !sort_features(first)) return nullptr;
    if (chunk_.entries > first) {
      chunk_.max_feature = std::max<int64_t>(chunk_.max_feature, indices_[chunk_.entries - 1]);
    }
    return p + 1;
  }

  // The \n of the line if p is at a \r before it or at a comment, else null.
  const char* line_end(const char* p) const {
    if (*p == '\r' && p[1] == '\n') return p + 1;
    if (!format_.comments || *p != '#') return nullptr;
    return static_cast<const char*>(std::memchr(p, '\n', static_cast<size_t>(chunk_.end - p)));
  }

  bool sort_features(int64_t first) {
    row_.clear();
    for (int64_t k = first; k < chunk_.entries; ++k) row_.emplace_back(indices_[k], values_[k]);
    std::stable_sort(row_.begin(), row_.end(), [](auto& a, auto& b) { return a.first < b.first; });
    int64_t k = first;
    bool finite = true;
    for (const auto& [id, value] : row_) {
      if (k > first && indices_[k - 1] == id) {
        if (!format_.sum_duplicates) return false;
        values_[k - 1] += value;
        finite &= std::isfinite(values_[k - 1]);
      } else {
        indices_[k] = id;
        values_[k] = value;
        ++k;
      }
    }
    chunk_.entries = k;
    return finite;
  }

  Chunk& chunk_;
  const TextFormat& format_;
  const uint64_t base_;
  int32_t* const indices_;
  float* const values_;
  int64_t* const sizes_;
  int64_t* const label_sizes_;
  std::vector<std::pair<int32_t, float>> row_;
};

// Closes the gap between a chunk's reserved places and what it used.
template <class T>
void move_down(T* items, int64_t from, int64_t to, int64_t n) {
  if (from != to && n > 0) std::memmove(items + to, items + from, static_cast<size_t>(n) * sizeof(T));
}

}  // namespace

Scan scan(std::string_view text, int threads) {
  Scan s;
  if (text.empty()) return s;
  const size_t tail = tail_start(text);
  s.tail.assign(text.begin() + static_cast<std::ptrdiff_t>(tail), text.end());
  if (s.tail.back() != '\n') s.tail.push_back('\n');
  const size_t tail_size = s.tail.size();
  s.tail.resize(tail_size + kPad);
  for (size_t at = 0; at < tail;) {
    const size_t end = std::min(line_start_after(text, std::min(at + kChunk, tail) - 1), tail);
    s.chunks.push_back({text.data() + at, text.data() + end, 0, 0, 0, 0});
    at = end;
  }
  s.chunks.push_back({s.tail.data(), s.tail.data() + tail_size, 0, 0, 0, 0});
  parallel_for(static_cast<int64_t>(s.chunks.size()), threads, [&](int64_t i, int) {
    Chunk& c = s.chunks[static_cast<size_t>(i)];
    count_bytes(c.begin, static_cast<size_t>(c.end - c.begin), c.lines, c.colons);
  });
  for (Chunk& c : s.chunks) {
    c.first_row = s.lines;
    c.first_entry = s.colons;
    s.lines += c.lines;
    s.colons += c.colons;
  }
  return s;
}

TextCounts parse(Scan& scan, const TextFormat& format, const TextOutput& out, int threads) {
  parallel_for(static_cast<int64_t>(scan.chunks.size()), threads,
               [&](int64_t i, int) { Parser(scan.chunks[static_cast<size_t>(i)], format, out).run(); });
  TextCounts total;
  for (const Chunk& c : scan.chunks) {
    move_down(out.sizes, c.first_row, total.rows, c.rows);
    move_down(out.label_sizes, c.first_row, total.rows, c.rows);
    move_down(out.indices, c.first_entry, total.entries, c.entries);
    move_down(out.values, c.first_entry, total.entries, c.entries);
    total.rows += c.rows;
    total.entries += c.entries;
    total.labels += static_cast<int64_t>(c.labels.size());
    total.max_feature = std::max(total.max_feature, c.max_feature);
    total.max_label = std::max(total.max_label, c.max_label);
  }
  return total;
}

void copy_labels(const Scan& scan, int32_t* labels) {
  for (const Chunk& c : scan.chunks) labels = std::copy(c.labels.begin(), c.labels.end(), labels);
}

}  // namespace xmc::data
