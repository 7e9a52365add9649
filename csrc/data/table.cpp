#include "data/table.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "core/parallel.h"
#include "data/table_rows.h"
#include "data/utf8.h"
#include "data/vocabulary.h"

namespace xmc::data {
namespace {

constexpr int64_t kChunk = int64_t{1} << 20;  // of split_lines

int64_t count(const char* p, const char* end, char c) {
  return std::count(p, end, c);
}

// The start of the first row after p, or null if none starts before `end`. `quoted`: p is inside quotes.
const char* find_row(const char* p, const char* end, bool quoted) {
  for (; p < end; ++p) {
    if (*p == '"') quoted = !quoted;
    if (*p == '\n' && !quoted) return p + 1 < end ? p + 1 : nullptr;
  }
  return nullptr;
}

struct Part {
  const char* begin;           // first row; null: none starts here
  const char* limit;           // rows that start before it belong to this part
  const char* stop = nullptr;  // end of the last row
  RowSink sink{};
};

class Splitter {
 public:
  Splitter(std::string_view text, const TableFormat& format, int threads)
      : begin_(text.data()), end_(begin_ + text.size()), format_(format), threads_(threads) {
    slots_.assign(static_cast<size_t>(format.n_fields), -1);
    for (size_t c = 0; c < format.positions.size(); ++c) {
      slots_.at(static_cast<size_t>(format.positions[c])) = static_cast<int32_t>(c);
    }
  }

  Table run() {
    if (begin_ == end_) return assemble(begin_);
    guess_parts();
    parallel_for(static_cast<int64_t>(parts_.size()), threads_,
                 [&](int64_t i, int) { split(parts_[static_cast<size_t>(i)]); });
    return assemble(verify());
  }

 private:
  void guess_parts() {
    const int64_t chunk = format_.chunk;
    const int64_t n = chunk_count(end_ - begin_, chunk);
    std::vector<int64_t> quotes(static_cast<size_t>(n));
    if (!format_.json) {
      parallel_for(n, threads_, [&](int64_t i, int) {
        const char* const from = begin_ + i * chunk;
        quotes[static_cast<size_t>(i)] = count(from, std::min(from + chunk, end_), '"');
      });
    }
    int64_t before = 0;
    for (int64_t i = 0; i < n; ++i) {
      const char* const from = begin_ + i * chunk;
      const char* const row = i == 0 ? begin_ : find_row(from, std::min(from + chunk, end_), before & 1);
      before += quotes[static_cast<size_t>(i)];
      if (!row) continue;
      if (!parts_.empty()) parts_.back().limit = row;
      parts_.push_back({row, end_});
    }
  }

  void split(Part& part) const {
    RowSink& sink = part.sink;
    sink = {};
    sink.columns.resize(format_.paths.size());
    const char* p = part.begin;
    while (p < part.limit) {
      const char* const next =
          format_.json ? json_row(p, end_, format_, sink) : csv_row(p, end_, format_, slots_.data(), sink);
      if (!next) break;
      p = next;
    }
    part.stop = p;
    if (format_.json) return;
    for (auto& column : sink.columns)
      column.fields.resize(static_cast<size_t>(sink.rows));  // whole rows only
  }

  // Splits again what did not start at the end of the part before, and raises the first error. Returns where
  // the finished rows end.
  const char* verify() {
    const char* at = begin_;
    for (Part& part : parts_) {
      if (part.begin != at) {
        part.begin = at;
        split(part);
      }
      if (!part.sink.error.empty()) {
        const int64_t line = format_.first_line + count(begin_, part.sink.error_at, '\n');
        throw std::invalid_argument(format_.name + ":" + std::to_string(line) + ": " + part.sink.error);
      }
      at = part.stop;
      if (at < part.limit) {  // an unfinished row: nothing after it counts
        parts_.resize(static_cast<size_t>(&part - parts_.data()) + 1);
        break;
      }
    }
    return at;
  }

  Table assemble(const char* stop) {
    Table table;
    table.consumed = stop - begin_;
    table.lines = count(begin_, stop, '\n');
    for (const Part& part : parts_) {
      table.rows += part.sink.rows;
      table.blank += part.sink.blank;
    }
    for (size_t c = 0; c < format_.paths.size(); ++c) table.columns.push_back(column(c));
    return table;
  }

  TextColumn column(size_t c) {
    TextColumn out;
    std::vector<size_t> first;  // value of each part
    out.offsets.push_back(0);
    const bool lists = format_.json && format_.roles[c] == Role::kLabels;
    if (lists) out.rows.push_back(0);
    for (const Part& part : parts_) {
      const RowSink::Column& column = part.sink.columns[c];
      first.push_back(out.offsets.size() - 1);
      for (const Field& field : column.fields) out.offsets.push_back(out.offsets.back() + field.size);
      if (lists) {
        for (const int32_t n : column.per_row) out.rows.push_back(out.rows.back() + n);
      }
      out.missing += column.missing;
      out.lists += column.lists;
      out.integers += column.integers;
    }
    out.bytes = std::make_unique_for_overwrite<char[]>(static_cast<size_t>(out.offsets.back()));
    parallel_for(static_cast<int64_t>(parts_.size()), threads_, [&](int64_t i, int) {
      const auto& fields = parts_[static_cast<size_t>(i)].sink.columns[c].fields;
      const int64_t* offset = out.offsets.data() + first[static_cast<size_t>(i)];
      for (const Field& field : fields) {
        char* const to = out.bytes.get() + *offset++;
        if (field.raw == field.size) {
          std::memcpy(to, field.begin, field.size);
        } else {
          (format_.json ? unescape_json : unescape_csv)(field, to);
        }
      }
    });
    return out;
  }

  const char* begin_;
  const char* end_;
  const TableFormat& format_;
  const int threads_;
  std::vector<int32_t> slots_;  // position of a field -> chosen column, or -1
  std::vector<Part> parts_;
};

std::string_view strip(std::string_view s) {
  constexpr std::string_view kBlank = " \t\r\n\v\f";
  const size_t begin = s.find_first_not_of(kBlank);
  return begin == s.npos ? std::string_view{} : s.substr(begin, s.find_last_not_of(kBlank) - begin + 1);
}

}  // namespace

void RowSink::fail(const char* at, std::string reason) {
  error = std::move(reason);
  error_at = at;
}

Table split_table(std::string_view text, const TableFormat& format, int threads) {
  return Splitter(text, format, threads).run();
}

TextColumn split_lines(std::string_view text, const std::string& name, int64_t first_line, int threads) {
  TextColumn out;
  out.offsets.push_back(0);
  out.bytes = std::make_unique_for_overwrite<char[]>(text.size());
  char* to = out.bytes.get();
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const size_t size = end - at - (end > at && text[end - 1] == '\r');
    std::memcpy(to, text.data() + at, size);
    to += size;
    out.offsets.push_back(to - out.bytes.get());
    at = end + 1;
  }
  // A sequence that is cut by a chunk is found by the chunk it starts in: chunks end at line ends.
  parallel_for(chunk_count(static_cast<int64_t>(text.size()), kChunk), threads, [&](int64_t i, int) {
    const auto cut = [&](int64_t k) {
      const size_t at = std::min(static_cast<size_t>(k * kChunk), text.size());
      return at == 0 ? at : std::min(text.find('\n', at - 1), text.size() - 1) + 1;
    };
    const size_t begin = cut(i);
    const size_t end = cut(i + 1);
    if (const char* bad = begin < end ? find_invalid_utf8(text.substr(begin, end - begin)) : nullptr) {
      const auto at = static_cast<size_t>(bad - text.data());
      const size_t start = at == 0 ? 0 : text.rfind('\n', at - 1) + 1;  // npos + 1 is 0
      throw std::invalid_argument(name + ":" + std::to_string(first_line + count(text.data(), bad, '\n')) +
                                  ":" + std::to_string(at - start + 1) + ": UTF-8 text expected, got " +
                                  quoted(text.substr(at, std::min<size_t>(8, text.find('\n', at) - at))));
    }
  });
  return out;
}

LabelRows split_labels(const char* bytes, const int64_t* offsets, const int64_t* rows, int64_t n_rows,
                       std::string_view separator) {
  LabelRows out;
  Vocabulary seen;
  std::vector<int64_t> row_of;  // last row a name was in
  std::string padded;
  out.indptr.push_back(0);
  for (int64_t i = 0; i < n_rows; ++i) {
    const auto add = [&](std::string_view name) {
      name = strip(name);
      if (name.empty()) return;
      padded.assign(name).append(Vocabulary::kPad, '\0');
      const uint32_t id = seen.add({padded.data(), name.size()});
      if (id == row_of.size()) {
        row_of.push_back(-1);
        out.names.emplace_back(name);
      }
      if (row_of[id] == i) {
        ++out.repeated;
      } else {
        row_of[id] = i;
        out.ids.push_back(static_cast<int32_t>(id));
      }
    };
    for (int64_t k = rows ? rows[i] : i; k < (rows ? rows[i + 1] : i + 1); ++k) {
      std::string_view value(bytes + offsets[k], static_cast<size_t>(offsets[k + 1] - offsets[k]));
      while (!separator.empty()) {
        const size_t at = value.find(separator);
        if (at == value.npos) break;
        add(value.substr(0, at));
        value.remove_prefix(at + separator.size());
      }
      add(value);
    }
    out.indptr.push_back(static_cast<int64_t>(out.ids.size()));
  }
  return out;
}

}  // namespace xmc::data
