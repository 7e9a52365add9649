#include "data/tfidf.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <stdexcept>

#include "core/parallel.h"
#include "data/number.h"

namespace xmc::data {
namespace {

constexpr int64_t kRows = 64;  // rows per block
constexpr int64_t kFew = 16;   // rows that are counted by sorting

// MurmurHash3_x86_32 with seed 0 (Austin Appleby, public domain), which scikit-learn hashes with.
uint32_t murmur3(std::string_view key) {
  const auto rotate = [](uint32_t x, int r) { return x << r | x >> (32 - r); };
  const auto scramble = [&](uint32_t k) { return rotate(k * 0xCC9E2D51u, 15) * 0x1B873593u; };
  const auto load4 = [](const char* p) { return static_cast<uint32_t>(load8(p)); };  // kPad lets it
  const char* p = key.data();
  size_t n = key.size();
  uint32_t h = 0;
  for (; n >= 4; n -= 4, p += 4) h = rotate(h ^ scramble(load4(p)), 13) * 5 + 0xE6546B64u;
  if (n > 0) h ^= scramble(load4(p) & (0xFFFFFFFFu >> (32 - 8 * n)));
  h ^= static_cast<uint32_t>(key.size());
  h = (h ^ h >> 16) * 0x85EBCA6Bu;
  h = (h ^ h >> 13) * 0xC2B2AE35u;
  return h ^ h >> 16;
}

bool by_id(const TermEntry& a, const TermEntry& b) {
  return a.id < b.id;
}

// By id, where equal ids keep their order: digits of 11 bits, the lowest first.
void sort_by_id(std::vector<TermEntry>& entries, size_t first, std::vector<TermEntry>& scratch) {
  constexpr size_t kDigits = 2048;
  const size_t n = entries.size() - first;
  TermEntry* from = entries.data() + first;
  if (n < 64) {
    for (size_t k = 1; k < n; ++k) {
      const TermEntry e = from[k];
      size_t at = k;
      for (; at > 0 && from[at - 1].id > e.id; --at) from[at] = from[at - 1];
      from[at] = e;
    }
    return;
  }
  uint32_t highest = 0;
  for (size_t k = 0; k < n; ++k) highest |= from[k].id;
  scratch.resize(n);
  TermEntry* to = scratch.data();
  for (int shift = 0; shift < 32 && highest >> shift; shift += 11, std::swap(from, to)) {
    std::array<uint32_t, kDigits> place{};
    for (size_t k = 0; k < n; ++k) ++place[from[k].id >> shift & (kDigits - 1)];
    std::exclusive_scan(place.begin(), place.end(), place.begin(), 0u);
    for (size_t k = 0; k < n; ++k) to[place[from[k].id >> shift & (kDigits - 1)]++] = from[k];
  }
  if (to != scratch.data()) std::copy_n(from, n, to);
}

// Sums of one row. By table: place_[id] is 1 + its place in the list of this row, 0 if it has not occurred yet. By
// sorting, which adds up in the same order: for few rows, whose counting must not cost as much as the vocabulary is
// large, and for hashed columns, where each access to the table would miss the cache. The row is in order then.
class Counter {
 public:
  explicit Counter(bool sorting) : sorting_(sorting) {}

  void add(uint32_t id, float amount, size_t first, std::vector<TermEntry>& entries) {
    if (sorting_) {
      entries.push_back({id, amount});
      return;
    }
    if (id >= place_.size()) place_.resize(std::max<size_t>(id + 1, 2 * place_.size()));
    if (place_[id]) {
      entries[first + place_[id] - 1].tf += amount;
    } else {
      entries.push_back({id, amount});
      place_[id] = static_cast<uint32_t>(entries.size() - first);
    }
  }
  void finish(size_t first, std::vector<TermEntry>& entries) {
    if (!sorting_) {
      for (size_t k = first; k < entries.size(); ++k) place_[entries[k].id] = 0;
      return;
    }
    sort_by_id(entries, first, scratch_);
    const auto begin = entries.begin() + static_cast<std::ptrdiff_t>(first);
    auto to = begin;
    for (auto from = begin; from != entries.end(); ++from) {
      if (to != begin && (to - 1)->id == from->id) {
        (to - 1)->tf += from->tf;
      } else {
        *to++ = *from;
      }
    }
    entries.erase(to, entries.end());
  }

 private:
  bool sorting_;
  std::vector<uint32_t> place_;
  std::vector<TermEntry> scratch_;
};

// Counts the terms of a row; find(term) gives their ids.
class RowCounter {
 public:
  explicit RowCounter(bool sorting) : counter_(sorting), sums_(sorting) {}

  // Appends the row to entries, each term once; by ascending id if it counts by sorting.
  template <class Find>
  void count(const Corpus& corpus, int64_t row, const Analyzer& analyzer, Find&& find,
             std::vector<TermEntry>& entries) {
    const size_t first = entries.size();
    if (corpus.fields.size() == 1 && corpus.weights[0] == 1) {
      count_text(corpus.fields[0][static_cast<size_t>(row)], analyzer, find, entries);
      return;
    }
    for (size_t f = 0; f < corpus.fields.size(); ++f) {
      field_.clear();
      count_text(corpus.fields[f][static_cast<size_t>(row)], analyzer, find, field_);
      for (const TermEntry& e : field_) {
        sums_.add(e.id, static_cast<float>(corpus.weights[f] * static_cast<double>(e.tf)), first, entries);
      }
    }
    sums_.finish(first, entries);
  }

 private:
  template <class Find>
  void count_text(std::string_view text, const Analyzer& analyzer, Find& find,
                  std::vector<TermEntry>& entries) {
    const size_t first = entries.size();
    analyzer.split(text, units_);
    analyzer.for_each_term(units_, [&](int64_t, int64_t, std::string_view term) {
      const uint32_t id = find(term);
      if (id != Vocabulary::kNone) counter_.add(id, 1, first, entries);
    });
    counter_.finish(first, entries);
  }

  Units units_;
  Counter counter_;
  Counter sums_;
  std::vector<TermEntry> field_;
};

// Values of one row from its counts; norms are summed in double.
void weigh(const TermEntry* entries, int64_t n, const Weighting& w, int32_t* indices, float* values,
           std::vector<double>& row) {
  row.resize(static_cast<size_t>(n));
  double norm = 0;
  for (int64_t k = 0; k < n; ++k) {
    const auto tf = static_cast<double>(entries[k].tf);
    const double idf = w.idf ? static_cast<double>(w.idf[entries[k].id]) : 1;
    const double value = (w.sublinear && tf != 1 ? 1 + std::log(tf) : tf) * idf;
    row[static_cast<size_t>(k)] = value;
    norm += w.norm == Norm::kL2 ? value * value : std::abs(value);
  }
  if (w.norm == Norm::kL2) norm = std::sqrt(norm);
  const double scale = w.norm == Norm::kNone || norm == 0 ? 1 : norm;
  for (int64_t k = 0; k < n; ++k) {
    indices[k] = static_cast<int32_t>(entries[k].id);
    values[k] = static_cast<float>(row[static_cast<size_t>(k)] / scale);
  }
}

// Blocks with sizes (per text) and entries (sorted by id in each text) to CSR.
template <class Block>
TermRows to_rows(const std::vector<Block>& blocks, const Weighting& weighting, int threads) {
  TermRows out;
  out.indptr.push_back(0);
  std::vector<size_t> first_row;
  for (const Block& b : blocks) {
    first_row.push_back(out.indptr.size() - 1);
    for (const int64_t size : b.sizes) out.indptr.push_back(out.indptr.back() + size);
  }
  out.indices.resize(static_cast<size_t>(out.indptr.back()));
  out.values.resize(static_cast<size_t>(out.indptr.back()));
  parallel_for(static_cast<int64_t>(blocks.size()), threads, [&](int64_t i, int) {
    const Block& b = blocks[static_cast<size_t>(i)];
    std::vector<double> row;
    const auto* entries = b.entries.data();
    for (size_t k = 0; k < b.sizes.size(); ++k) {
      const auto at = static_cast<size_t>(out.indptr[first_row[static_cast<size_t>(i)] + k]);
      weigh(entries, b.sizes[k], weighting, out.indices.data() + at, out.values.data() + at, row);
      entries += b.sizes[k];
    }
  });
  return out;
}

// The first 8 bytes as a number that sorts like them.
uint64_t sort_prefix(std::string_view term) {
  uint64_t prefix = 0;
  for (size_t k = 0; k < 8; ++k)
    prefix = prefix << 8 | (k < term.size() ? static_cast<unsigned char>(term[k]) : 0u);
  return prefix;
}

}  // namespace

uint32_t Columns::find(std::string_view term) const {
  if (vocabulary) return vocabulary->find(term);
  const uint32_t h = murmur3(term);
  const uint32_t size = h >> 31 ? 0u - h : h;
  return hashed & (hashed - 1) ? size % hashed : size & (hashed - 1);
}

// One thread's vocabulary and its counts.
struct TermCounts::Local {
  Vocabulary terms;
  std::vector<uint32_t> rows_with;
  std::vector<double> occurrences;
  RowCounter counter;
  std::vector<TermEntry> scratch;

  explicit Local(bool hashed) : counter(hashed) {}

  void count(const Corpus& corpus, int64_t row, const Analyzer& analyzer, uint32_t hashed,
             std::vector<TermEntry>& entries) {
    const size_t first = entries.size();
    if (hashed) {
      const Columns columns{nullptr, hashed};
      counter.count(
          corpus, row, analyzer, [&](std::string_view term) { return columns.find(term); }, entries);
    } else {
      counter.count(corpus, row, analyzer, [&](std::string_view term) { return terms.add(term); }, entries);
    }
    rows_with.resize(hashed ? hashed : terms.size());
    for (size_t k = first; k < entries.size(); ++k) ++rows_with[entries[k].id];
    if (hashed) return;
    occurrences.resize(rows_with.size());
    for (size_t k = first; k < entries.size(); ++k) {
      occurrences[entries[k].id] += static_cast<double>(entries[k].tf);
    }
  }
};

TermCounts::TermCounts(const Corpus& corpus, const Analyzer& analyzer, uint32_t hashed, bool keep_rows,
                       int threads)
    : hashed_(hashed) {
  const int64_t n = corpus.rows();
  const int64_t blocks = chunk_count(n, kRows);
  std::vector<Local> locals(static_cast<size_t>(std::max(threads, 1)), Local(hashed > 0));
  if (keep_rows) blocks_.resize(static_cast<size_t>(blocks));
  parallel_for(blocks, threads, [&](int64_t i, int thread) {
    Local& local = locals[static_cast<size_t>(thread)];
    const int64_t last = std::min((i + 1) * kRows, n);
    for (int64_t row = i * kRows; row < last; ++row) {
      if (!keep_rows) {
        local.scratch.clear();
        local.count(corpus, row, analyzer, hashed, local.scratch);
        continue;
      }
      Block& block = blocks_[static_cast<size_t>(i)];
      const size_t before = block.entries.size();
      block.thread = thread;
      local.count(corpus, row, analyzer, hashed, block.entries);
      block.sizes.push_back(static_cast<int64_t>(block.entries.size() - before));
    }
  });
  merge(locals);
}

// Thread 0's vocabulary takes the others in. Ids in it depend on the threads, what select() makes of them does
// not: occurrences add floats up in double, which is exact in any order until a sum is 2^29 times its smallest
// part.
void TermCounts::merge(std::vector<Local>& locals) {
  terms_ = std::move(locals[0].terms);
  rows_with_ = std::move(locals[0].rows_with);
  occurrences_ = std::move(locals[0].occurrences);
  if (hashed_) {
    rows_with_.resize(hashed_);
    for (size_t t = 1; t < locals.size(); ++t) {
      for (size_t id = 0; id < locals[t].rows_with.size(); ++id) rows_with_[id] += locals[t].rows_with[id];
    }
    return;
  }
  global_.resize(locals.size());
  global_[0].resize(rows_with_.size());
  std::iota(global_[0].begin(), global_[0].end(), 0u);
  for (size_t t = 1; t < locals.size(); ++t) {
    const Local& local = locals[t];
    global_[t].resize(local.rows_with.size());
    for (uint32_t id = 0; id < local.rows_with.size(); ++id) {
      const uint32_t merged = terms_.add(local.terms.term(id));
      global_[t][id] = merged;
      if (merged == rows_with_.size()) {
        rows_with_.push_back(0);
        occurrences_.push_back(0);
      }
      rows_with_[merged] += local.rows_with[id];
      occurrences_[merged] += local.occurrences[id];
    }
  }
}

TermList TermCounts::select(int64_t low, int64_t high) {
  TermList out;
  out.offsets.push_back(0);
  if (hashed_) {
    out.rows.assign(rows_with_.begin(), rows_with_.end());
    return out;
  }
  struct Key {
    uint64_t prefix;
    uint32_t id;
  };
  std::vector<Key> kept;
  for (uint32_t id = 0; id < terms_.size(); ++id) {
    if (rows_with_[id] >= low && rows_with_[id] <= high) kept.push_back({sort_prefix(terms_.term(id)), id});
  }
  std::sort(kept.begin(), kept.end(), [&](const Key& a, const Key& b) {
    return a.prefix != b.prefix ? a.prefix < b.prefix : terms_.term(a.id) < terms_.term(b.id);
  });
  selected_.assign(terms_.size(), -1);
  for (size_t k = 0; k < kept.size(); ++k) {
    const uint32_t id = kept[k].id;
    selected_[id] = static_cast<int32_t>(k);
    out.text += terms_.term(id);
    out.offsets.push_back(static_cast<int64_t>(out.text.size()));
    out.rows.push_back(rows_with_[id]);
    out.occurrences.push_back(occurrences_[id]);
  }
  return out;
}

TermRows TermCounts::rows(const int32_t* columns, const Weighting& weighting, int threads) {
  if (!hashed_) to_columns(columns, threads);
  TermRows out = to_rows(blocks_, weighting, threads);
  blocks_.clear();
  return out;
}

void TermCounts::to_columns(const int32_t* columns, int threads) {
  if (selected_.size() != rows_with_.size()) throw std::logic_error("select() must come before rows()");
  std::vector<int32_t> column(selected_.size(), -1);
  for (size_t id = 0; id < column.size(); ++id) {
    if (selected_[id] >= 0) column[id] = columns[selected_[id]];
  }
  parallel_for(static_cast<int64_t>(blocks_.size()), threads, [&](int64_t i, int) {
    Block& block = blocks_[static_cast<size_t>(i)];
    const std::vector<uint32_t>& global = global_[static_cast<size_t>(block.thread)];
    auto from = block.entries.begin();
    auto to = from;
    for (int64_t& size : block.sizes) {
      const auto first = to;
      for (const auto last = from + size; from != last; ++from) {
        const int32_t c = column[global[from->id]];
        if (c >= 0) *to++ = {static_cast<uint32_t>(c), from->tf};
      }
      std::sort(first, to, by_id);
      size = to - first;
    }
    block.entries.erase(to, block.entries.end());
  });
}

TermRows transform(const Corpus& corpus, const Analyzer& analyzer, const Columns& columns,
                   const Weighting& weighting, int threads) {
  struct Block {
    std::vector<int64_t> sizes;
    std::vector<TermEntry> entries;
  };
  const int64_t n = corpus.rows();
  const int64_t count = chunk_count(n, kRows);
  std::vector<Block> blocks(static_cast<size_t>(count));
  const bool sorting = n <= kFew || !columns.vocabulary;
  std::vector<RowCounter> counters(static_cast<size_t>(std::max(threads, 1)), RowCounter(sorting));
  parallel_for(count, threads, [&](int64_t i, int thread) {
    Block& block = blocks[static_cast<size_t>(i)];
    const int64_t last = std::min((i + 1) * kRows, n);
    for (int64_t row = i * kRows; row < last; ++row) {
      const size_t first = block.entries.size();
      counters[static_cast<size_t>(thread)].count(
          corpus, row, analyzer, [&](std::string_view term) { return columns.find(term); }, block.entries);
      if (!sorting) {
        std::sort(block.entries.begin() + static_cast<std::ptrdiff_t>(first), block.entries.end(), by_id);
      }
      block.sizes.push_back(static_cast<int64_t>(block.entries.size() - first));
    }
  });
  return to_rows(blocks, weighting, threads);
}

std::vector<TermSpan> find_terms(std::string_view text, const Analyzer& analyzer, const Columns& columns) {
  Units units;
  analyzer.split(text, units, true);
  std::vector<TermSpan> out;
  analyzer.for_each_term(units, [&](int64_t i, int64_t j, std::string_view term) {
    const uint32_t column = columns.find(term);
    if (column == Vocabulary::kNone) return;
    out.push_back({units.from[static_cast<size_t>(i)], units.to[static_cast<size_t>(j)], column});
  });
  return out;
}

}  // namespace xmc::data
