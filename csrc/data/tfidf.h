// Term counts and tf-idf with the semantics of scikit-learn's TfidfVectorizer.
//
// Fit: TermCounts counts words and n-grams of all texts in one pass, each thread with a dictionary of its
// own; these are merged, cut by document frequency, and numbered in the order of the terms (bytes, which for
// UTF-8 is the order of code points), so that nothing depends on threads. Transform: a fixed Terms table.
// Values: tf or 1 + log tf, times idf, rows divided by their l2 or l1 norm.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "data/terms.h"
#include "data/tokens.h"

namespace xmc::data {

struct Grams {
  int64_t low = 1;  // n-grams of low .. high words
  int64_t high = 1;
};

enum class Norm { kNone, kL1, kL2 };

struct Weighting {
  const float* idf = nullptr;  // per final column
  bool sublinear = false;
  Norm norm = Norm::kL2;
};

// CSR rows.
struct TermRows {
  std::vector<int64_t> indptr;
  std::vector<int32_t> indices;
  std::vector<float> values;
};

// Sorted terms, joined, with their number of texts and of occurrences.
struct TermList {
  std::string text;
  std::vector<int64_t> offsets;  // term i is text[offsets[i], offsets[i+1])
  std::vector<int64_t> texts;
  std::vector<int64_t> occurrences;
};

class TermCounts {
 public:
  // keep_rows: keep the counts of each text, for rows().
  TermCounts(const std::vector<std::string_view>& texts, const Tokenizer& tokenizer, Grams grams,
             bool keep_rows, int threads);

  int64_t n_terms() const { return terms_.size(); }

  // The terms that occur in at least `low` and at most `high` texts; they define the columns of rows().
  TermList select(int64_t low, int64_t high);

  // The texts' rows, where selected term i becomes column columns[i], or none if -1. Once only: it works in
  // place.
  TermRows rows(const int32_t* columns, const Weighting& weighting, int threads);

 private:
  struct Entry {
    uint32_t id;
    uint32_t count;
  };
  struct Block {
    int thread = 0;              // whose dictionary the ids are of
    std::vector<int64_t> sizes;  // per text
    std::vector<Entry> entries;
  };
  struct Local;

  void merge(std::vector<Local>& locals);

  Terms terms_;
  std::vector<int64_t> texts_;                 // per term
  std::vector<int64_t> occurrences_;           // per term
  std::vector<std::vector<uint32_t>> global_;  // [thread][local id] -> id in terms_
  std::vector<int32_t> selected_;              // id in terms_ -> place in the selection, or -1
  std::vector<Block> blocks_;
};

// Rows over a fixed vocabulary; other terms are ignored.
TermRows transform(const std::vector<std::string_view>& texts, const Tokenizer& tokenizer, Grams grams,
                   const Terms& terms, const Weighting& weighting, int threads);

}  // namespace xmc::data
