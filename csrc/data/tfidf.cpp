#include "data/tfidf.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>

#include "core/parallel.h"

namespace xmc::data {
namespace {

constexpr int64_t kTexts = 64;  // texts per block

struct Counted {
  uint32_t id;
  uint32_t count;
};

// Calls fn(n-gram) for each word and n-gram of a text.
template <class Fn>
void for_each_gram(const Words& words, Grams grams, Fn&& fn) {
  const auto n = static_cast<int64_t>(words.begin.size());
  for (int64_t length = grams.low; length <= grams.high; ++length) {
    for (int64_t i = 0; i + length <= n; ++i) {
      const uint32_t begin = words.begin[static_cast<size_t>(i)];
      const uint32_t end = words.end[static_cast<size_t>(i + length - 1)];
      fn(std::string_view(words.text.data() + begin, end - begin));
    }
  }
}

// Counts ids of one text: place_[id] is 1 + its place in the list of this text, 0 if it has not come yet.
class Counter {
 public:
  template <class Entry>
  void count(uint32_t id, size_t first, std::vector<Entry>& entries) {
    if (id >= place_.size()) place_.resize(std::max<size_t>(id + 1, 2 * place_.size()));
    if (place_[id]) {
      ++entries[first + place_[id] - 1].count;
    } else {
      entries.push_back({id, 1});
      place_[id] = static_cast<uint32_t>(entries.size() - first);
    }
  }
  template <class Entry>
  void finish(size_t first, const std::vector<Entry>& entries) {
    for (size_t k = first; k < entries.size(); ++k) place_[entries[k].id] = 0;
  }

 private:
  std::vector<uint32_t> place_;
};

// Values of one row from its counts; norms are summed in double.
template <class Entry>
void weigh(const Entry* entries, int64_t n, const Weighting& w, int32_t* indices, float* values,
           std::vector<double>& row) {
  row.resize(static_cast<size_t>(n));
  double norm = 0;
  for (int64_t k = 0; k < n; ++k) {
    const auto tf = static_cast<double>(entries[k].count);
    const double value =
        (w.sublinear && tf != 1 ? 1 + std::log(tf) : tf) * static_cast<double>(w.idf[entries[k].id]);
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

template <class Entry>
bool by_id(const Entry& a, const Entry& b) {
  return a.id < b.id;
}

// The first 8 bytes as a number that sorts like them.
uint64_t sort_prefix(std::string_view term) {
  uint64_t prefix = 0;
  for (size_t k = 0; k < 8; ++k)
    prefix = prefix << 8 | (k < term.size() ? static_cast<unsigned char>(term[k]) : 0u);
  return prefix;
}

}  // namespace

// One thread's dictionary and its counts.
struct TermCounts::Local {
  Terms terms;
  std::vector<int64_t> texts;
  std::vector<int64_t> occurrences;
  Words words;
  Counter counter;
  std::vector<Entry> scratch;

  void count(Grams grams, std::vector<Entry>& entries) {
    const size_t first = entries.size();
    for_each_gram(words, grams,
                  [&](std::string_view gram) { counter.count(terms.add(gram), first, entries); });
    counter.finish(first, entries);
    texts.resize(terms.size());
    occurrences.resize(terms.size());
    for (size_t k = first; k < entries.size(); ++k) {
      ++texts[entries[k].id];
      occurrences[entries[k].id] += entries[k].count;
    }
  }
};

TermCounts::TermCounts(const std::vector<std::string_view>& texts, const Tokenizer& tokenizer, Grams grams,
                       bool keep_rows, int threads) {
  const auto n = static_cast<int64_t>(texts.size());
  const int64_t blocks = chunk_count(n, kTexts);
  std::vector<Local> locals(static_cast<size_t>(std::max(threads, 1)));
  if (keep_rows) blocks_.resize(static_cast<size_t>(blocks));
  parallel_for(blocks, threads, [&](int64_t i, int thread) {
    Local& local = locals[static_cast<size_t>(thread)];
    const int64_t last = std::min((i + 1) * kTexts, n);
    for (int64_t t = i * kTexts; t < last; ++t) {
      tokenizer.split(texts[static_cast<size_t>(t)], local.words);
      if (!keep_rows) {
        local.scratch.clear();
        local.count(grams, local.scratch);
        continue;
      }
      Block& block = blocks_[static_cast<size_t>(i)];
      const size_t before = block.entries.size();
      block.thread = thread;
      local.count(grams, block.entries);
      block.sizes.push_back(static_cast<int64_t>(block.entries.size() - before));
    }
  });
  merge(locals);
}

// Thread 0's dictionary takes the others in. Ids in it depend on the threads, what select() makes of them
// does not.
void TermCounts::merge(std::vector<Local>& locals) {
  terms_ = std::move(locals[0].terms);
  texts_ = std::move(locals[0].texts);
  occurrences_ = std::move(locals[0].occurrences);
  global_.resize(locals.size());
  global_[0].resize(terms_.size());
  std::iota(global_[0].begin(), global_[0].end(), 0u);
  for (size_t t = 1; t < locals.size(); ++t) {
    const Local& local = locals[t];
    global_[t].resize(local.terms.size());
    for (uint32_t id = 0; id < local.terms.size(); ++id) {
      const uint32_t merged = terms_.add(local.terms.term(id));
      global_[t][id] = merged;
      if (merged == texts_.size()) {
        texts_.push_back(0);
        occurrences_.push_back(0);
      }
      texts_[merged] += local.texts[id];
      occurrences_[merged] += local.occurrences[id];
    }
  }
}

TermList TermCounts::select(int64_t low, int64_t high) {
  struct Key {
    uint64_t prefix;
    uint32_t id;
  };
  std::vector<Key> kept;
  for (uint32_t id = 0; id < terms_.size(); ++id) {
    if (texts_[id] >= low && texts_[id] <= high) kept.push_back({sort_prefix(terms_.term(id)), id});
  }
  std::sort(kept.begin(), kept.end(), [&](const Key& a, const Key& b) {
    return a.prefix != b.prefix ? a.prefix < b.prefix : terms_.term(a.id) < terms_.term(b.id);
  });
  selected_.assign(terms_.size(), -1);
  TermList out;
  out.offsets.push_back(0);
  for (size_t k = 0; k < kept.size(); ++k) {
    const uint32_t id = kept[k].id;
    selected_[id] = static_cast<int32_t>(k);
    out.text += terms_.term(id);
    out.offsets.push_back(static_cast<int64_t>(out.text.size()));
    out.texts.push_back(texts_[id]);
    out.occurrences.push_back(occurrences_[id]);
  }
  return out;
}

TermRows TermCounts::rows(const int32_t* columns, const Weighting& weighting, int threads) {
  if (selected_.size() != terms_.size()) throw std::logic_error("select() must come before rows()");
  std::vector<int32_t> column(terms_.size(), -1);
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
        if (c >= 0) *to++ = {static_cast<uint32_t>(c), from->count};
      }
      std::sort(first, to, by_id<Entry>);
      size = to - first;
    }
    block.entries.erase(to, block.entries.end());
  });
  TermRows out = to_rows(blocks_, weighting, threads);
  blocks_.clear();
  return out;
}

TermRows transform(const std::vector<std::string_view>& texts, const Tokenizer& tokenizer, Grams grams,
                   const Terms& terms, const Weighting& weighting, int threads) {
  struct Block {
    std::vector<int64_t> sizes;
    std::vector<Counted> entries;
  };
  const auto n = static_cast<int64_t>(texts.size());
  const int64_t count = chunk_count(n, kTexts);
  std::vector<Block> blocks(static_cast<size_t>(count));
  std::vector<Words> words(static_cast<size_t>(std::max(threads, 1)));
  std::vector<Counter> counters(words.size());
  parallel_for(count, threads, [&](int64_t i, int thread) {
    Words& w = words[static_cast<size_t>(thread)];
    Counter& counter = counters[static_cast<size_t>(thread)];
    Block& block = blocks[static_cast<size_t>(i)];
    const int64_t last = std::min((i + 1) * kTexts, n);
    for (int64_t t = i * kTexts; t < last; ++t) {
      tokenizer.split(texts[static_cast<size_t>(t)], w);
      const size_t first = block.entries.size();
      for_each_gram(w, grams, [&](std::string_view gram) {
        const uint32_t id = terms.find(gram);
        if (id != Terms::kNone) counter.count(id, first, block.entries);
      });
      counter.finish(first, block.entries);
      std::sort(block.entries.begin() + static_cast<std::ptrdiff_t>(first), block.entries.end(),
                by_id<Counted>);
      block.sizes.push_back(static_cast<int64_t>(block.entries.size() - first));
    }
  });
  return to_rows(blocks, weighting, threads);
}

}  // namespace xmc::data
