#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "data/table_rows.h"
#include "data/utf8.h"

namespace xmc::data {
namespace {

// The first separator or end of a row from p on, or `end`. Sixteen bytes at a time: the inner loop vectorises.
const char* find_delimiter(const char* p, const char* end, char separator) {
  for (; end - p >= 16; p += 16) {
    int found = 0;
    for (int k = 0; k < 16; ++k) found |= (p[k] == separator) | (p[k] == '\n') | (p[k] == '\r');
    if (found) break;
  }
  while (p < end && *p != separator && *p != '\n' && *p != '\r') ++p;
  return p;
}

// Reads the field at p and returns the place of its delimiter; null if its quotes are not closed.
const char* csv_field(const char* p, const char* end, char separator, Field& field, size_t& size) {
  if (p == end || *p != '"') {
    const char* const stop = find_delimiter(p, end, separator);
    size = static_cast<size_t>(stop - p);
    field = {p, static_cast<uint32_t>(size), static_cast<uint32_t>(size)};
    return stop;
  }
  const char* const begin = p + 1;
  uint32_t dropped = 0;
  const char* q = begin;
  for (;; q += 2, ++dropped) {
    q = static_cast<const char*>(std::memchr(q, '"', static_cast<size_t>(end - q)));
    if (!q) return nullptr;
    if (q + 1 == end || q[1] != '"') break;
  }
  const char* stop = find_delimiter(q + 1, end, separator);
  const char* last = q;
  if (stop != q + 1) {  // characters after the closing quote belong to the field
    last = stop;
    ++dropped;
  }
  size = static_cast<size_t>(last - begin);
  field = {begin, static_cast<uint32_t>(size), static_cast<uint32_t>(size) - dropped};
  return stop;
}

}  // namespace

const char* csv_row(const char* p, const char* end, const TableFormat& format, const int32_t* slots,
                    RowSink& sink) {
  const char* const start = p;
  if (*p == '\n' || *p == '\r') {
    if (*p == '\r' && p + 1 == end && !format.final) return nullptr;
    ++sink.blank;
    return p + (*p == '\r' && p + 1 < end && p[1] == '\n' ? 2 : 1);
  }
  int64_t n = 0;
  for (;; ++p, ++n) {
    Field field{};
    size_t size = 0;
    const char* const begin = p;
    p = csv_field(begin, end, format.separator, field, size);
    if (!p) {
      if (format.final) sink.fail(begin, "the quoted field that starts here is never closed");
      return nullptr;
    }
    if (size >= UINT32_MAX) {
      sink.fail(begin, "a field has 4 GiB or more");
      return nullptr;
    }
    if (p == end && !format.final) return nullptr;
    if (n < format.n_fields && slots[n] >= 0) {
      if (const char* bad = find_invalid_utf8({field.begin, field.raw})) {
        sink.fail(
            bad, "UTF-8 text expected, got " +
                     quoted({bad, static_cast<size_t>(std::min<int64_t>(8, field.begin + field.raw - bad))}));
        return nullptr;
      }
      sink.columns[static_cast<size_t>(slots[n])].fields.push_back(field);
    }
    if (p == end || *p != format.separator) break;
  }
  if (++n != format.n_fields) {
    sink.fail(start, std::to_string(format.n_fields) + " fields expected as in the header, got " +
                         std::to_string(n));
    return nullptr;
  }
  if (p < end && *p == '\r') {
    if (p + 1 == end && !format.final) return nullptr;
    if (p + 1 < end && p[1] == '\n') ++p;
  }
  ++sink.rows;
  return p == end ? end : p + 1;
}

void unescape_csv(const Field& field, char* out) {
  const char* p = field.begin;
  const char* const end = p + field.raw;
  while (p < end) {
    const auto* q = static_cast<const char*>(std::memchr(p, '"', static_cast<size_t>(end - p)));
    if (!q) q = end;
    std::memcpy(out, p, static_cast<size_t>(q - p));
    out += q - p;
    if (q == end) return;
    if (q + 1 < end && q[1] == '"') {
      *out++ = '"';
      p = q + 2;
    } else {  // the closing quote: the rest is literal
      std::memcpy(out, q + 1, static_cast<size_t>(end - q - 1));
      return;
    }
  }
}

Record first_record(std::string_view text, char separator, const std::string& name) {
  Record record;
  const char* p = text.data();
  const char* const end = p + text.size();
  for (;; ++p) {
    Field field{};
    size_t size = 0;
    p = csv_field(p, end, separator, field, size);
    if (!p) throw std::invalid_argument(name + ":1: a quoted field of the header is never closed");
    record.fields.emplace_back(field.size, '\0');
    if (field.raw == field.size) {
      record.fields.back().assign(field.begin, field.size);
    } else {
      unescape_csv(field, record.fields.back().data());
    }
    if (p == end || *p != separator) break;
  }
  if (p < end && *p == '\r') ++p;
  if (p < end && *p == '\n') ++p;
  record.size = p - text.data();
  return record;
}

}  // namespace xmc::data
