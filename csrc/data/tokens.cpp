#include "data/tokens.h"

#include <cstring>
#include <limits>
#include <stdexcept>

namespace xmc::data {

Tokenizer::Tokenizer(bool lowercase, const uint8_t* word_bits, int64_t n_bytes)
    : word_bits_(word_bits), n_bytes_(n_bytes) {
  for (int c = '0'; c <= '9'; ++c) ascii_[static_cast<size_t>(c)] = static_cast<char>(c);
  for (int c = 'a'; c <= 'z'; ++c) {
    ascii_[static_cast<size_t>(c)] = static_cast<char>(c);
    ascii_[static_cast<size_t>(c - 32)] = static_cast<char>(lowercase ? c : c - 32);
  }
  ascii_['_'] = '_';
}

// One UTF-8 sequence starting at a byte >= 0x80; a broken one is a single byte of no meaning.
Tokenizer::Char Tokenizer::decode(const char* p, const char* end) {
  constexpr uint32_t kNone = 0x110000;
  const auto byte = [p](int k) { return static_cast<uint32_t>(static_cast<unsigned char>(p[k])); };
  const uint32_t lead = byte(0);
  const int size = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || end - p < size) return {kNone, 1};
  uint32_t code = lead & (0xFFu >> (size + 1));
  for (int k = 1; k < size; ++k) {
    if ((byte(k) & 0xC0) != 0x80) return {kNone, 1};
    code = (code << 6) | (byte(k) & 0x3F);
  }
  return {code, size};
}

void Tokenizer::split(std::string_view text, Words& words) const {
  if (text.size() >= std::numeric_limits<uint32_t>::max() / 2) {
    throw std::invalid_argument("a text has 2 GiB or more");
  }
  const size_t needed = 2 * text.size() + 16;  // at most one space more per word
  if (words.text.size() < needed) words.text.resize(needed);
  words.begin.clear();
  words.end.clear();
  char* const first = words.text.data();
  char* out = first;
  const char* p = text.data();
  const char* const end = p + text.size();
  while (p < end) {
    char* const begin = out;
    int64_t characters = 0;
    for (;;) {
      char c;
      while (p < end && (c = ascii_[static_cast<unsigned char>(*p)]) != 0) {
        *out++ = c;
        ++p;
        ++characters;
      }
      if (p == end || static_cast<unsigned char>(*p) < 0x80) break;
      const Char found = decode(p, end);
      if (!is_word(found.code)) break;
      std::memcpy(out, p, static_cast<size_t>(found.size));
      out += found.size;
      p += found.size;
      ++characters;
    }
    if (characters >= 2) {
      words.begin.push_back(static_cast<uint32_t>(begin - first));
      words.end.push_back(static_cast<uint32_t>(out - first));
      *out++ = ' ';
    } else {
      out = begin;
    }
    if (p < end) p += static_cast<unsigned char>(*p) < 0x80 ? 1 : decode(p, end).size;
  }
}

}  // namespace xmc::data
