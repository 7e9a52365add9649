#include "data/analyzer.h"

#include <cstring>
#include <stdexcept>

#include "data/utf8.h"

namespace xmc::data {
namespace {

constexpr size_t kMaxText = size_t{1} << 30;
constexpr size_t kMaxReplacement = 64;

// str.isspace of Python, which is \s of its regular expressions.
bool is_space(uint32_t c) {
  return c == ' ' || (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x1F) || c == 0x85 || c == 0xA0 ||
         c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
         c == 0x205F || c == 0x3000;
}

Utf8Char next_char(const char* p, const char* end) {
  const auto c = static_cast<unsigned char>(*p);
  return c < 0x80 ? Utf8Char{c, 1} : decode_utf8(p, end);
}

// Appends a unit of `size` bytes at `out`.
char* push(Units& units, char* out, const char* from, size_t size) {
  std::memcpy(out, from, size);
  units.begin.push_back(static_cast<uint32_t>(out - units.text.data()));
  units.end.push_back(units.begin.back() + static_cast<uint32_t>(size));
  return out + size;
}

}  // namespace

Analyzer::Analyzer(const AnalyzerOptions& options) : options_(options) {
  for (size_t c = 0; c < 256; ++c) {
    const bool upper = c >= 'A' && c <= 'Z';
    lower_[c] = static_cast<char>(options.lowercase && upper ? c + 32 : c);
    const bool word = upper || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
    word_[0][c] = word ? lower_[c] : '\0';
    word_[1][c] = word ? static_cast<char>(c) : '\0';
  }
}

void Analyzer::split(std::string_view text, Units& units, bool spans) const {
  if (text.size() >= kMaxText) throw std::invalid_argument("a text has 1 GiB or more");
  units.begin.clear();
  units.end.clear();
  units.segments.assign(1, 0);
  units.from.clear();
  units.to.clear();
  const bool replace = options_.fold.pages && !is_ascii(text);
  const bool folded = replace || spans || options_.kind != AnalyzerKind::kWord;
  if (folded) text = fold(text, units, spans);
  const size_t needed = 3 * text.size() + 16;  // at most two spaces more per character
  if (units.text.size() < needed) units.text.resize(needed);
  switch (options_.kind) {
    case AnalyzerKind::kWord:
      words(text, units, word_[folded], spans);
      break;
    case AnalyzerKind::kChar:
      characters(text, units, spans);
      break;
    case AnalyzerKind::kCharWb:
      padded_words(text, units, spans);
      return;  // has its own segments
  }
  units.segments.push_back(static_cast<uint32_t>(units.begin.size()));
}

// Every character replaced. With spans, origin[k] is the number of the character that byte k comes from.
std::string_view Analyzer::fold(std::string_view text, Units& units, bool spans) const {
  const char* p = text.data();
  const char* const end = p + text.size();
  size_t used = 0;
  units.origin.clear();
  for (uint32_t character = 0; p < end; ++character) {
    if (units.folded.size() < used + kMaxReplacement)
      units.folded.resize(2 * used + text.size() + 2 * kMaxReplacement);
    char* const out = units.folded.data();
    if (!spans) {  // ASCII in one go
      const char* const stop =
          p + std::min<int64_t>(end - p, static_cast<int64_t>(units.folded.size() - used));
      while (p < stop && static_cast<unsigned char>(*p) < 0x80)
        out[used++] = lower_[static_cast<unsigned char>(*p++)];
      if (p == end) break;
      if (units.folded.size() < used + kMaxReplacement) continue;
    }
    const Utf8Char c = next_char(p, end);
    const size_t before = used;
    uint32_t cell = FoldTable::kSame;
    if (c.code >= 0x80 && c.code != Utf8Char::kInvalid && options_.fold.pages) {
      cell = options_.fold.cells[options_.fold.pages[c.code >> 8] * 256u + (c.code & 255)];
    }
    if (c.code < 0x80) {
      out[used++] = lower_[c.code];
    } else if (cell == FoldTable::kSame) {
      std::memcpy(out + used, p, static_cast<size_t>(c.size));
      used += static_cast<size_t>(c.size);
    } else {
      std::memcpy(out + used, options_.fold.bytes + (cell >> 6), cell & 63);
      used += cell & 63;
    }
    p += c.size;
    if (spans) units.origin.insert(units.origin.end(), used - before, character);
  }
  return {units.folded.data(), used};
}

void Analyzer::words(std::string_view text, Units& units, const std::array<char, 256>& ascii,
                     bool spans) const {
  char* const first = units.text.data();
  char* out = first;
  const char* p = text.data();
  const char* const end = p + text.size();
  while (p < end) {
    char* const begin = out;
    const char* const start = p;
    int64_t characters = 0;
    for (;;) {
      char c;
      while (p < end && (c = ascii[static_cast<unsigned char>(*p)]) != 0) {
        *out++ = c;
        ++p;
        ++characters;
      }
      if (p == end || static_cast<unsigned char>(*p) < 0x80) break;
      const Utf8Char found = decode_utf8(p, end);
      if (!is_word(found.code)) break;
      std::memcpy(out, p, static_cast<size_t>(found.size));
      out += found.size;
      p += found.size;
      ++characters;
    }
    const bool keep =
        characters >= 2 &&
        !(options_.stop_words &&
          options_.stop_words->find({begin, static_cast<size_t>(out - begin)}) != Vocabulary::kNone);
    if (keep) {
      units.begin.push_back(static_cast<uint32_t>(begin - first));
      units.end.push_back(static_cast<uint32_t>(out - first));
      *out++ = ' ';
      if (spans) {
        units.from.push_back(units.origin[static_cast<size_t>(start - text.data())]);
        units.to.push_back(units.origin[static_cast<size_t>(p - 1 - text.data())] + 1);
      }
    } else {
      out = begin;
    }
    if (p < end) p += next_char(p, end).size;
  }
}

void Analyzer::characters(std::string_view text, Units& units, bool spans) const {
  char* out = units.text.data();
  const char* p = text.data();
  const char* const end = p + text.size();
  while (p < end) {
    const char* const start = p;
    Utf8Char c = next_char(p, end);
    p += c.size;
    int64_t blanks = is_space(c.code);
    while (blanks > 0 && p < end && is_space((c = next_char(p, end)).code)) {
      p += c.size;
      ++blanks;
    }
    out = blanks > 1 ? push(units, out, " ", 1) : push(units, out, start, static_cast<size_t>(p - start));
    if (spans) {
      units.from.push_back(units.origin[static_cast<size_t>(start - text.data())]);
      units.to.push_back(units.origin[static_cast<size_t>(p - 1 - text.data())] + 1);
    }
  }
}

void Analyzer::padded_words(std::string_view text, Units& units, bool spans) const {
  char* out = units.text.data();
  const char* p = text.data();
  const char* const end = p + text.size();
  const auto span = [&](const char* at, bool after) {  // an added space covers no character
    const uint32_t place = units.origin[static_cast<size_t>(at - text.data())] + after;
    units.from.push_back(place);
    units.to.push_back(place);
  };
  while (p < end) {
    Utf8Char c = next_char(p, end);
    if (is_space(c.code)) {
      p += c.size;
      continue;
    }
    out = push(units, out, " ", 1);
    if (spans) span(p, false);
    for (; p < end && !is_space((c = next_char(p, end)).code); p += c.size) {
      out = push(units, out, p, static_cast<size_t>(c.size));
      if (spans) {
        units.from.push_back(units.origin[static_cast<size_t>(p - text.data())]);
        units.to.push_back(units.from.back() + 1);
      }
    }
    out = push(units, out, " ", 1);
    if (spans) span(p - 1, true);
    units.segments.push_back(static_cast<uint32_t>(units.begin.size()));
  }
}

}  // namespace xmc::data
