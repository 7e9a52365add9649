#include <algorithm>
#include <cstring>

#include "data/table_rows.h"
#include "data/utf8.h"

namespace xmc::data {
namespace {

constexpr int kDepth = 200;  // nested lists and objects

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

// The four hexadecimal digits at p, or -1.
int32_t hex4(const char* p, const char* end) {
  if (end - p < 4) return -1;
  int32_t code = 0;
  for (int k = 0; k < 4; ++k) {
    const char c = p[k];
    const int digit = is_digit(c)            ? c - '0'
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                             : -1;
    if (digit < 0) return -1;
    code = code << 4 | digit;
  }
  return code;
}

struct Escape {
  uint32_t code;
  int raw;  // bytes in the file; 0: not an escape of JSON
};

// The escape whose backslash is at p. A pair of surrogates is one character.
Escape escape(const char* p, const char* end) {
  static constexpr char kFrom[] = "\"\\/bfnrt";
  static constexpr char kTo[] = "\"\\/\b\f\n\r\t";
  if (end - p < 2) return {0, 0};
  if (p[1] != 'u') {
    const char* at = p[1] ? std::strchr(kFrom, p[1]) : nullptr;
    return at ? Escape{static_cast<uint32_t>(kTo[at - kFrom]), 2} : Escape{0, 0};
  }
  const int32_t first = hex4(p + 2, end);
  if (first < 0) return {0, 0};
  if (first >= 0xD800 && first < 0xDC00 && end - p >= 12 && p[6] == '\\' && p[7] == 'u') {
    const int32_t second = hex4(p + 8, end);
    if (second >= 0xDC00 && second < 0xE000) {
      return {static_cast<uint32_t>(0x10000 + ((first - 0xD800) << 10) + (second - 0xDC00)), 12};
    }
  }
  return {static_cast<uint32_t>(first), 6};
}

// A chosen column that may still be found below the object being read, and the rest of its path.
struct Wanted {
  size_t column;
  std::string_view path;
};

class ObjectReader {
 public:
  ObjectReader(const char* begin, const char* end, const TableFormat& format, RowSink& sink)
      : p_(begin), end_(end), format_(format), sink_(sink) {}

  bool run() {
    std::vector<Wanted> wanted;
    for (size_t c = 0; c < format_.paths.size(); ++c) {
      wanted.push_back({c, format_.paths[c]});
      forget(c);
    }
    if (*p_ != '{') return fail("a JSON object expected");
    if (!object(wanted, 0)) return false;
    skip_blanks();
    if (p_ < end_) return fail("end of the line expected after the JSON object");
    for (auto& column : sink_.columns) {
      column.missing += column.kind == RowSink::Kind::kMissing;
      column.lists += column.kind == RowSink::Kind::kList;
    }
    return true;
  }

 private:
  bool fail(const std::string& reason) {
    const std::string_view rest(p_, static_cast<size_t>(end_ - p_));
    sink_.fail(p_, reason + ", got " + (rest.empty() ? "the end of the line" : quoted(rest)));
    return false;
  }

  void skip_blanks() {
    while (p_ < end_ && (*p_ == ' ' || *p_ == '\t' || *p_ == '\r')) ++p_;
  }

  // Skips `c` and blanks around it.
  bool take(char c) {
    skip_blanks();
    if (p_ == end_ || *p_ != c) return false;
    ++p_;
    skip_blanks();
    return true;
  }

  // Removes what the row has for a column so far: the last of two equal keys counts.
  void forget(size_t c) {
    auto& column = sink_.columns[c];
    column.fields.resize(column.before);
    column.integers = column.integers_before;
    column.kind = RowSink::Kind::kMissing;
  }

  // wanted: the columns below this object.
  bool object(const std::vector<Wanted>& wanted, int depth) {
    if (depth > kDepth) return fail("at most " + std::to_string(kDepth) + " nested levels are supported");
    ++p_;
    if (take('}')) return true;
    do {
      skip_blanks();
      Field key{};
      if (!string(key)) return false;
      if (!take(':')) return fail("':' expected");
      std::string decoded;
      std::string_view text(key.begin, key.raw);
      if (key.raw != key.size) {
        decoded.resize(key.size);
        unescape_json(key, decoded.data());
        text = decoded;
      }
      if (!value(text, wanted, depth + 1)) return false;
    } while (take(','));
    return take('}') || fail("',' or '}' expected");
  }

  // The value of a key: captured, searched for wanted columns, or skipped.
  bool value(std::string_view key, const std::vector<Wanted>& wanted, int depth) {
    std::vector<Wanted> below;
    for (const Wanted& w : wanted) {
      if (w.path == key) {
        forget(w.column);
        return capture(w.column);
      }
      if (w.path.size() > key.size() && w.path[key.size()] == '.' && w.path.starts_with(key)) {
        forget(w.column);
        below.push_back({w.column, w.path.substr(key.size() + 1)});
      }
    }
    return p_ < end_ && *p_ == '{' && !below.empty() ? object(below, depth) : skip(depth);
  }

  bool capture(size_t c) {
    auto& column = sink_.columns[c];
    const bool labels = format_.roles[c] == Role::kLabels;
    if (p_ < end_ && *p_ == '[' && labels) return list(column);
    const size_t before = column.fields.size();
    if (!scalar(column, labels, labels ? "a label, a list of labels" : "text", c)) return false;
    column.kind = column.fields.size() > before ? RowSink::Kind::kOne : RowSink::Kind::kMissing;
    return true;
  }

  bool list(RowSink::Column& column) {
    column.kind = RowSink::Kind::kList;
    const auto c = static_cast<size_t>(&column - sink_.columns.data());
    ++p_;
    if (take(']')) return true;
    do {
      skip_blanks();
      if (!scalar(column, true, "a label", c)) return false;
    } while (take(','));
    return take(']') || fail("',' or ']' expected");
  }

  // A string, an integer (labels) or null becomes a value of the column.
  bool scalar(RowSink::Column& column, bool labels, const char* expected, size_t c) {
    if (p_ < end_ && *p_ == '"') {
      Field field{};
      if (!string(field)) return false;
      column.fields.push_back(field);
      return true;
    }
    const char* const start = p_;
    if (word("null") || word("NaN")) return true;
    if (labels && p_ < end_ && (is_digit(*p_) || *p_ == '-')) {
      bool integer = false;
      if (!number(integer)) return false;
      if (integer) {
        const auto size = static_cast<uint32_t>(p_ - start);
        column.fields.push_back({start, size, size});
        ++column.integers;
        return true;
      }
      p_ = start;
    }
    return fail(std::string(expected) + " or null expected in the field '" + format_.paths[c] + "'");
  }

  bool word(std::string_view name) {
    if (std::string_view(p_, static_cast<size_t>(end_ - p_)).substr(0, name.size()) != name) return false;
    p_ += name.size();
    return true;
  }

  bool digits() {
    const char* const start = p_;
    while (p_ < end_ && is_digit(*p_)) ++p_;
    return p_ > start;
  }

  bool number(bool& integer) {
    integer = true;
    if (p_ < end_ && *p_ == '-') ++p_;
    if (word("Infinity")) {
      integer = false;
      return true;
    }
    if (p_ < end_ && *p_ == '0') {
      ++p_;
    } else if (!digits()) {
      return fail("a JSON value expected");
    }
    if (p_ < end_ && *p_ == '.') {
      ++p_;
      integer = false;
      if (!digits()) return fail("a digit expected");
    }
    if (p_ < end_ && (*p_ == 'e' || *p_ == 'E')) {
      ++p_;
      integer = false;
      if (p_ < end_ && (*p_ == '+' || *p_ == '-')) ++p_;
      if (!digits()) return fail("a digit expected");
    }
    return true;
  }

  // A string, checked; the field is what is between its quotes.
  bool string(Field& field) {
    if (p_ == end_ || *p_ != '"') return fail("a string in double quotes expected");
    const char* const begin = ++p_;
    size_t dropped = 0;
    unsigned char any = 0;
    for (;; ++p_) {
      while (p_ < end_ && *p_ != '"' && *p_ != '\\' && static_cast<unsigned char>(*p_) >= 0x20) {
        any |= static_cast<unsigned char>(*p_++);
      }
      if (p_ == end_) return fail("a closing quote expected");
      if (*p_ == '"') break;
      if (*p_ != '\\') return fail("a control character in a string must be escaped");
      const Escape e = escape(p_, end_);
      if (e.raw == 0) return fail("an escape of JSON expected");
      dropped += static_cast<size_t>(e.raw - encoded_size(e.code));
      p_ += e.raw - 1;
    }
    const auto raw = static_cast<size_t>(p_ - begin);
    if (raw >= UINT32_MAX) return fail("a string has 4 GiB or more");
    if (any >= 0x80) {
      if (const char* bad = find_invalid_utf8({begin, raw})) {
        p_ = bad;
        return fail("UTF-8 text expected");
      }
    }
    field = {begin, static_cast<uint32_t>(raw), static_cast<uint32_t>(raw - dropped)};
    ++p_;
    return true;
  }

  // Any value that no column wants.
  bool skip(int depth) {
    if (depth > kDepth) return fail("at most " + std::to_string(kDepth) + " nested levels are supported");
    if (p_ == end_) return fail("a JSON value expected");
    Field ignored{};
    switch (*p_) {
      case '"':
        return string(ignored);
      case '{':
        return object({}, depth);
      case '[': {
        ++p_;
        if (take(']')) return true;
        do {
          skip_blanks();
          if (!skip(depth + 1)) return false;
        } while (take(','));
        return take(']') || fail("',' or ']' expected");
      }
      default: {
        bool integer = false;
        for (const char* name : {"true", "false", "null", "NaN", "Infinity"}) {
          if (word(name)) return true;
        }
        return number(integer);
      }
    }
  }

  const char* p_;
  const char* const end_;
  const TableFormat& format_;
  RowSink& sink_;
};

}  // namespace

const char* json_row(const char* p, const char* end, const TableFormat& format, RowSink& sink) {
  const auto* stop = static_cast<const char*>(std::memchr(p, '\n', static_cast<size_t>(end - p)));
  if (!stop && !format.final) return nullptr;
  const char* const next = stop ? stop + 1 : end;
  if (!stop) stop = end;
  while (p < stop && (*p == ' ' || *p == '\t' || *p == '\r')) ++p;
  if (p == stop) {
    ++sink.blank;
    return next;
  }
  for (auto& column : sink.columns) {
    column.before = column.fields.size();
    column.integers_before = column.integers;
  }
  if (!ObjectReader(p, stop, format, sink).run()) return nullptr;
  for (size_t c = 0; c < sink.columns.size(); ++c) {
    auto& column = sink.columns[c];
    if (format.roles[c] == Role::kLabels) {
      column.per_row.push_back(static_cast<int32_t>(column.fields.size() - column.before));
    } else if (column.kind == RowSink::Kind::kMissing) {
      column.fields.push_back({p, 0, 0});
    }
  }
  ++sink.rows;
  return next;
}

void unescape_json(const Field& field, char* out) {
  const char* p = field.begin;
  const char* const end = p + field.raw;
  while (p < end) {
    const auto* q = static_cast<const char*>(std::memchr(p, '\\', static_cast<size_t>(end - p)));
    if (!q) q = end;
    std::memcpy(out, p, static_cast<size_t>(q - p));
    out += q - p;
    if (q == end) return;
    const Escape e = escape(q, end);
    out = encode_utf8(e.code, out);
    p = q + e.raw;
  }
}

}  // namespace xmc::data
