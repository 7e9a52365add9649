// Names of labels in texts: runs of words that are a name, the longest ones.
//
// Names and texts are split into words by one analyzer. Words are compared by their roots: all letters replaced as the
// spellings say, one replacement after the other, then without the longest of the given endings that leaves kRoot
// bytes. From each word of a text the longest name that starts there is found; one that lies inside of an earlier one is
// left out.
//
// The names are kept sorted by their roots, so that the names which go on with a word are a range: a search goes
// through a text like Aho and Corasick's, one binary search a word, but starts anew at each word. Fields of a row are
// read one after the other; no name goes from one to the next.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "data/analyzer.h"
#include "data/tfidf.h"
#include "data/vocabulary.h"

namespace xmc::data {

// CSR: the labels named in each row, ascending, and how.
struct NameMatches {
  std::vector<int64_t> indptr;
  std::vector<int32_t> labels;
  std::vector<int32_t> count;      // times
  std::vector<int32_t> first;      // words before the first time
  std::vector<int32_t> in_head;    // times in the row's head
  std::vector<int32_t> exact;      // times with the very endings of the name
  std::vector<int32_t> words;      // of the longest of its names found
  std::vector<int32_t> ambiguity;  // labels that share the name, at least
  std::vector<int32_t> row_words;  // per row: its words
};

class Names {
 public:
  static constexpr size_t kRoot = 4;

  using Spellings =
      std::vector<std::pair<std::string, std::string>>;  // what is replaced (not empty), by what

  // Name i is texts[i], of label labels[i]. Names without a word are never found.
  Names(const std::vector<std::string_view>& texts, const int32_t* labels, const Analyzer& analyzer,
        Spellings spellings, std::vector<std::string> endings);

  // The head of a row is its first field, of rows with one field its first `head` words. The analyzer is that of the
  // names. The same for any number of threads.
  NameMatches find(const Corpus& corpus, const Analyzer& analyzer, int64_t head, int threads) const;

 private:
  struct Name {
    std::vector<uint32_t> roots;
    std::string words;  // one space apart
    int32_t label = 0;
  };
  struct Range {
    size_t begin;
    size_t end;
  };
  struct Hit {
    int32_t label;
    int32_t at;
    int32_t words;
    int32_t ambiguity;
    bool in_head;
    bool exact;
  };
  struct Scratch;

  std::string_view root(std::string_view word, std::string& scratch) const;  // padded for the vocabulary
  Range narrow(Range range, size_t depth, uint32_t next) const;  // names whose root `depth` is `next`
  void scan(const Units& units, int32_t before, int32_t head, Scratch& scratch) const;

  Spellings spellings_;
  std::vector<std::string> endings_;  // the longest first
  Vocabulary vocabulary_;             // of roots
  std::vector<Name> names_;           // by roots
  std::vector<size_t> first_;         // names_[first_[r]..first_[r+1]) start with root r
};

}  // namespace xmc::data
