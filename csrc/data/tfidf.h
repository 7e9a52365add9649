// Term counts and tf-idf with the semantics of scikit-learn's TfidfVectorizer and HashingVectorizer.
//
// A row is a text, or several texts (fields) with a weight each: tf = sum over fields of weight * count. Terms
// do not cross fields.
//
// Fit: TermCounts counts the terms of all rows in one pass, each thread with a vocabulary of its own; these are
// merged, cut by document frequency, and numbered in the order of the terms (bytes, which for UTF-8 is the order
// of code points), so that nothing depends on threads. Transform: a fixed vocabulary. With hashing, the column
// of a term is |murmur3(term)| mod columns and there is no vocabulary.
// Values: tf or 1 + log tf, times idf, rows divided by their l2 or l1 norm.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "data/analyzer.h"
#include "data/vocabulary.h"

namespace xmc::data {

struct Corpus {
  std::vector<std::vector<std::string_view>> fields;  // all of the same length
  std::vector<double> weights;                        // one per field

  int64_t rows() const { return fields.empty() ? 0 : static_cast<int64_t>(fields[0].size()); }
};

enum class Norm { kNone, kL1, kL2 };

struct Weighting {
  const float* idf = nullptr;  // per final column; null: all 1
  bool sublinear = false;
  Norm norm = Norm::kL2;
};

// CSR rows.
struct TermRows {
  std::vector<int64_t> indptr;
  std::vector<int32_t> indices;
  std::vector<float> values;
};

// Sorted terms, joined, with their number of rows and their sum of tf. With hashing: only rows, per column.
struct TermList {
  std::string text;
  std::vector<int64_t> offsets;  // term i is text[offsets[i], offsets[i+1])
  std::vector<int64_t> rows;
  std::vector<double> occurrences;
};

// The column of a term: its place in a vocabulary, or a hash.
struct Columns {
  const Vocabulary* vocabulary = nullptr;
  uint32_t hashed = 0;  // number of columns, if there is no vocabulary

  uint32_t find(std::string_view term) const;  // readable past its end as in Vocabulary; kNone: not there
};

struct TermEntry {
  uint32_t id;
  float tf;
};

class TermCounts {
 public:
  // hashed: number of columns, 0 to build a vocabulary. keep_rows: keep the counts of each row, for rows().
  TermCounts(const Corpus& corpus, const Analyzer& analyzer, uint32_t hashed, bool keep_rows, int threads);

  int64_t n_terms() const { return static_cast<int64_t>(rows_with_.size()); }

  // The terms that occur in at least `low` and at most `high` rows; they define the columns of rows().
  TermList select(int64_t low, int64_t high);

  // The rows, where selected term i becomes column columns[i], or none if -1 (unused with hashing). Once only: it
  // works in place.
  TermRows rows(const int32_t* columns, const Weighting& weighting, int threads);

 private:
  struct Block {
    int thread = 0;              // whose vocabulary the ids are of
    std::vector<int64_t> sizes;  // per row
    std::vector<TermEntry> entries;
  };
  struct Local;

  void merge(std::vector<Local>& locals);
  void to_columns(const int32_t* columns, int threads);  // ids of the entries to columns, rows in their order

  const uint32_t hashed_;
  Vocabulary terms_;
  std::vector<uint32_t> rows_with_;            // per term
  std::vector<double> occurrences_;            // per term
  std::vector<std::vector<uint32_t>> global_;  // [thread][local id] -> id in terms_
  std::vector<int32_t> selected_;              // id in terms_ -> place in the selection, or -1
  std::vector<Block> blocks_;
};

// Rows over fixed columns; terms without a column are ignored.
TermRows transform(const Corpus& corpus, const Analyzer& analyzer, const Columns& columns,
                   const Weighting& weighting, int threads);

// Where the terms of a text are: characters [from, to) belong to a term of the column.
struct TermSpan {
  uint32_t from;
  uint32_t to;
  uint32_t column;
};
std::vector<TermSpan> find_terms(std::string_view text, const Analyzer& analyzer, const Columns& columns);

}  // namespace xmc::data
