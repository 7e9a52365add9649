// From a text to its terms, as scikit-learn's CountVectorizer finds them:
//
//   word     n-grams of low..high words; a word is a run of two or more word characters (the token pattern
//            (?u)\b\w\w+\b). Stop words are removed before n-grams are made.
//   char     n-grams of low..high characters; a run of two or more blanks counts as one space
//   char_wb  the same inside each word, where a word is what blanks separate, with a space added at both ends;
//            a word shorter than n gives itself, once
//
// Before, characters are replaced one by one: lower case, accents removed. What Unicode says about a character
// comes from the Python that runs (replacements, word characters), so both sides agree.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "data/vocabulary.h"

namespace xmc::data {

// Replacements of characters above ASCII: cells[pages[code >> 8] * 256 + (code & 255)] is kSame, or
// offset << 6 | length of the UTF-8 replacement in bytes[]. pages has 0x1100 entries; null: nothing is replaced.
struct FoldTable {
  static constexpr uint32_t kSame = 0xFFFFFFFFu;
  const uint16_t* pages = nullptr;
  const uint32_t* cells = nullptr;
  const char* bytes = nullptr;
};

enum class AnalyzerKind { kWord, kChar, kCharWb };

struct AnalyzerOptions {
  AnalyzerKind kind = AnalyzerKind::kWord;
  int64_t low = 1;
  int64_t high = 1;
  bool lowercase = true;  // of ASCII; the fold table has the other characters
  FoldTable fold{};
  const uint8_t* word_bits = nullptr;  // bit c: code point c is a word character; for ASCII not needed
  int64_t n_word_bytes = 0;
  const Vocabulary* stop_words = nullptr;
};

// The words or characters of one text: unit i is text[begin[i], end[i]), and the n-gram of the units i..j is
// text[begin[i], end[j]), because words are one space apart and characters adjacent. Readable for
// Vocabulary::kPad bytes past the end.
struct Units {
  std::vector<char> text;
  std::vector<uint32_t> begin;
  std::vector<uint32_t> end;
  std::vector<uint32_t> segments;  // segment s: units segments[s] .. segments[s+1]-1; n-grams stay inside
  std::vector<uint32_t> from;      // with spans: unit i covers the characters [from[i], to[i]) of the text
  std::vector<uint32_t> to;
  std::vector<char> folded;      // scratch
  std::vector<uint32_t> origin;  // scratch: character of the text that each byte comes from
};

class Analyzer {
 public:
  explicit Analyzer(const AnalyzerOptions& options);

  // Texts of 1 GiB or more are refused (std::invalid_argument). A byte that is not UTF-8 separates words.
  void split(std::string_view text, Units& units, bool spans = false) const;

  // Calls fn(first unit, last unit, term) for each term.
  template <class Fn>
  void for_each_term(const Units& units, Fn&& fn) const {
    const auto call = [&](int64_t i, int64_t j) {
      const uint32_t at = units.begin[static_cast<size_t>(i)];
      fn(i, j, std::string_view(units.text.data() + at, units.end[static_cast<size_t>(j)] - at));
    };
    for (size_t s = 0; s + 1 < units.segments.size(); ++s) {
      const int64_t first = units.segments[s];
      const int64_t stop = units.segments[s + 1];
      for (int64_t n = options_.low; n <= options_.high; ++n) {
        if (options_.kind == AnalyzerKind::kCharWb && stop - first <= n) {
          call(first, stop - 1);
          break;
        }
        for (int64_t i = first; i + n <= stop; ++i) call(i, i + n - 1);
      }
    }
  }

 private:
  bool is_word(uint32_t code) const {
    return static_cast<int64_t>(code >> 3) < options_.n_word_bytes &&
           (options_.word_bits[code >> 3] >> (code & 7)) & 1;
  }
  std::string_view fold(std::string_view text, Units& units, bool spans) const;
  void words(std::string_view text, Units& units, const std::array<char, 256>& ascii, bool spans) const;
  void characters(std::string_view text, Units& units, bool spans) const;
  void padded_words(std::string_view text, Units& units, bool spans) const;

  AnalyzerOptions options_;
  std::array<char, 256> lower_{};
  // ASCII word characters, 0 for others: [0] in lower case, [1] as they are, for texts that are folded already
  // (a mathematical letter may become an ASCII capital, which stays one).
  std::array<std::array<char, 256>, 2> word_{};
};

}  // namespace xmc::data
