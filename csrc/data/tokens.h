// Words of a text, as scikit-learn's default token pattern (?u)\b\w\w+\b finds them: runs of two or more word
// characters. ASCII letters are made lower case here; texts with other characters must come in lower case
// already (Python's str.lower knows the special cases), and which of those characters are word characters is
// Python's knowledge too, handed over as a bit per code point.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace xmc::data {

// The words of one text, separated by single spaces: the n-gram of words i .. i+n-1 is
// text[begin[i], end[i+n-1]). Readable for 8 bytes past the end.
struct Words {
  std::vector<char> text;
  std::vector<uint32_t> begin;
  std::vector<uint32_t> end;
};

class Tokenizer {
 public:
  // word_bits: bit c of the array says whether code point c is a word character; may be empty when all texts
  // are ASCII.
  Tokenizer(bool lowercase, const uint8_t* word_bits, int64_t n_bytes);

  // Texts of 2 GiB or more are refused (std::invalid_argument). Invalid UTF-8 separates words.
  void split(std::string_view text, Words& words) const;

 private:
  struct Char {
    uint32_t code;
    int size;
  };
  static Char decode(const char* p, const char* end);
  bool is_word(uint32_t code) const {
    return static_cast<int64_t>(code >> 3) < n_bytes_ && (word_bits_[code >> 3] >> (code & 7)) & 1;
  }

  std::array<char, 256> ascii_{};  // lower-case word character, 0 for others
  const uint8_t* word_bits_;
  int64_t n_bytes_;
};

}  // namespace xmc::data
