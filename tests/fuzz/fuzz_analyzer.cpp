// Fuzz target of the analyzer and the term counts (csrc/data/analyzer.h, tfidf.h): no crash, no read out of
// bounds, no leak; words are as promised, and counting gives the same rows for any number of threads, by the
// fixed columns, and by the spans. The first two bytes choose the options; the rest is split at zero bytes into
// texts.
//
// With libFuzzer (-DXMC_LIBFUZZER) or with the main below: fuzz_analyzer SECONDS [SEED].
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "core/rng.h"
#include "data/tfidf.h"
#include "drive.h"

namespace {

using namespace xmc::data;

void check(bool right, const char* what) {
  if (right) return;
  std::fprintf(stderr, "%s\n", what);
  std::abort();
}

// Every third code point above ASCII is a word character.
const std::vector<uint8_t>& word_bits() {
  static const std::vector<uint8_t> bits = [] {
    std::vector<uint8_t> b(0x110000 / 8);
    for (size_t c = 128; c < 0x110000; c += 3) b[c >> 3] = static_cast<uint8_t>(b[c >> 3] | 1u << (c & 7));
    return b;
  }();
  return bits;
}

// Characters above ASCII stay, vanish, or become "e", "\xc3\xa9" or a longer text.
struct Fold {
  std::vector<uint16_t> pages = std::vector<uint16_t>(0x1100);
  std::vector<uint32_t> cells;
  std::string bytes = "e\xc3\xa9 long replacement with spaces ABC";
  Fold() {
    for (uint32_t k = 0; k < 256; ++k) {
      const uint32_t kinds[] = {FoldTable::kSame, 0, 0 << 6 | 1, 1 << 6 | 2, 3 << 6 | 34};
      cells.push_back(kinds[k % 5]);
    }
  }
};

struct Counted {
  TermList list;
  TermRows rows;
};

Counted count(const Corpus& corpus, const Analyzer& analyzer, uint32_t hashed, int threads) {
  TermCounts counts(corpus, analyzer, hashed, true, threads);
  Counted out;
  out.list = counts.select(1, corpus.rows());
  std::vector<int32_t> columns(out.list.rows.size());
  for (size_t k = 0; k < columns.size(); ++k) columns[k] = static_cast<int32_t>(k);
  const std::vector<float> idf(columns.size(), 1.5f);
  out.rows = counts.rows(columns.data(), {idf.data(), true, Norm::kL2}, threads);
  return out;
}

void same(const TermRows& a, const TermRows& b) {
  check(a.indptr == b.indptr && a.indices == b.indices && a.values == b.values, "rows differ");
}

void run(const uint8_t* bytes, size_t size) {
  if (size < 2) return;
  static const Fold fold;
  AnalyzerOptions options;
  options.kind = static_cast<AnalyzerKind>(bytes[0] % 3);
  options.low = 1 + (bytes[0] >> 2 & 1);
  options.high = options.low + (bytes[0] >> 3 & 3);
  options.lowercase = bytes[0] & 32;
  if (bytes[0] & 64) options.fold = {fold.pages.data(), fold.cells.data(), fold.bytes.data()};
  options.word_bits = word_bits().data();
  options.n_word_bytes = static_cast<int64_t>(word_bits().size());
  Vocabulary stop_words;
  stop_words.add(std::string_view("tea\0\0\0\0\0\0\0\0", 11).substr(0, 3));
  if (bytes[0] & 128) options.stop_words = &stop_words;
  const uint32_t hashed = bytes[1] & 1 ? 1 + bytes[1] : 0;
  const Analyzer analyzer(options);
  const std::unique_ptr<char[]> copy(new char[size]);  // its end is where the sanitizer looks
  for (size_t k = 2; k < size; ++k) copy[k] = static_cast<char>(bytes[k]);
  std::vector<std::string_view> texts;
  for (size_t k = 2; k < size;) {
    const std::string_view rest(copy.get() + k, size - k);
    texts.push_back(rest.substr(0, rest.find('\0')));
    k += texts.back().size() + 1;
  }
  Corpus corpus;
  corpus.fields.push_back(texts);
  corpus.weights.push_back(1);
  if (bytes[1] & 2) {
    corpus.fields.emplace_back(texts.rbegin(), texts.rend());
    corpus.weights.push_back(0.5);
  }
  Units units;
  for (const auto text : texts) {
    analyzer.split(text, units);
    for (size_t k = 0; k < units.begin.size() && options.kind == AnalyzerKind::kWord; ++k) {
      check(units.end[k] >= units.begin[k] + 2, "a short word");
      check(k == 0 || units.begin[k] == units.end[k - 1] + 1, "words are not one space apart");
    }
  }
  const Counted one = count(corpus, analyzer, hashed, 1);
  const Counted three = count(corpus, analyzer, hashed, 3);
  check(one.list.text == three.list.text && one.list.offsets == three.list.offsets, "terms differ");
  check(one.list.rows == three.list.rows && one.list.occurrences == three.list.occurrences, "counts differ");
  same(one.rows, three.rows);
  Vocabulary terms;
  const std::string padded = one.list.text + std::string(Vocabulary::kPad, '\0');
  for (size_t k = 0; k + 1 < one.list.offsets.size(); ++k) {
    const auto begin = static_cast<size_t>(one.list.offsets[k]);
    const auto end = static_cast<size_t>(one.list.offsets[k + 1]);
    check(terms.add({padded.data() + begin, end - begin}) == k, "a term comes twice");
  }
  const std::vector<float> idf(hashed ? hashed : terms.size(), 1.5f);
  const Columns columns{hashed ? nullptr : &terms, hashed};
  same(one.rows, transform(corpus, analyzer, columns, {idf.data(), true, Norm::kL2}, 2));
  double spans = 0;
  for (const auto text : texts) {
    for (const TermSpan& s : find_terms(text, analyzer, columns)) {
      check(s.from <= s.to && s.to <= text.size() && s.column < idf.size(), "a span outside the text");
      ++spans;
    }
  }
  double total = 0;
  for (const double occurrences : one.list.occurrences) total += occurrences;
  if (!hashed && corpus.fields.size() == 1) check(spans == total, "spans and counts differ");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  run(bytes, size);
  return 0;
}

#if !defined(XMC_LIBFUZZER)
int main(int argc, char** argv) {
  static const std::vector<std::string> pieces = {"tea",
                                                  "Green ",
                                                  "a",
                                                  " ",
                                                  "_1",
                                                  std::string(1, '\0'),
                                                  "\xc2\x80",
                                                  "\xc3\xa9x",
                                                  "\xe2\x82\xac",
                                                  "\xff",
                                                  "\xf0\x9f\x98\x80",
                                                  "\xe2\x82",
                                                  "\xf4",
                                                  "longer_than_eight_bytes ",
                                                  "\n",
                                                  "12345678 "};
  return drive(argc, argv, [](xmc::Rng& rng) {
    std::string input{static_cast<char>(rng.below(256)), static_cast<char>(rng.below(256))};
    // now and then more texts than one block holds
    for (uint32_t k = rng.below(rng.below(20) == 0 ? 2000 : 60); k > 0; --k) {
      input += rng.below(10) == 0 ? std::string(1, static_cast<char>(rng.below(256)))
                                  : pieces[rng.below(static_cast<uint32_t>(pieces.size()))];
    }
    return input;
  });
}
#endif
