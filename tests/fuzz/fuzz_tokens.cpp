// Fuzz target of the tokenizer and the term counts (csrc/data/tokens.h, tfidf.h): no crash, no read out of
// bounds, no leak; words are as promised, and counting gives the same rows for any number of threads and by
// the fixed vocabulary. The first byte chooses the options; the rest is split at zero bytes into texts.
//
// With libFuzzer (-DXMC_LIBFUZZER) or with the main below: fuzz_tokens SECONDS [SEED].
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "core/rng.h"
#include "data/tfidf.h"

namespace {

using namespace xmc;

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

struct Counted {
  data::TermList list;
  data::TermRows rows;
};

Counted count(const std::vector<std::string_view>& texts, const data::Tokenizer& tokenizer, data::Grams grams,
              int threads) {
  data::TermCounts counts(texts, tokenizer, grams, true, threads);
  Counted out;
  out.list = counts.select(1, static_cast<int64_t>(texts.size()));
  std::vector<int32_t> columns(out.list.texts.size());
  for (size_t k = 0; k < columns.size(); ++k) columns[k] = static_cast<int32_t>(k);
  const std::vector<float> idf(columns.size(), 1.5f);
  out.rows = counts.rows(columns.data(), {idf.data(), true, data::Norm::kL2}, threads);
  return out;
}

void same(const data::TermRows& a, const data::TermRows& b) {
  check(a.indptr == b.indptr && a.indices == b.indices && a.values == b.values, "rows differ");
}

void run(const uint8_t* bytes, size_t size) {
  if (size == 0) return;
  const data::Grams grams{1 + (bytes[0] & 1), 1 + (bytes[0] & 1) + (bytes[0] >> 1 & 1)};
  const data::Tokenizer tokenizer(bytes[0] & 4, word_bits().data(), static_cast<int64_t>(word_bits().size()));
  const std::unique_ptr<char[]> copy(new char[size]);  // its end is where the sanitizer looks
  for (size_t k = 1; k < size; ++k) copy[k] = static_cast<char>(bytes[k]);
  std::vector<std::string_view> texts;
  for (size_t k = 1; k < size;) {
    const std::string_view rest(copy.get() + k, size - k);
    texts.push_back(rest.substr(0, rest.find('\0')));
    k += texts.back().size() + 1;
  }
  data::Words words;
  for (const auto text : texts) {
    tokenizer.split(text, words);
    check(words.begin.size() == words.end.size(), "words do not match");
    for (size_t k = 0; k < words.begin.size(); ++k) {
      check(words.end[k] >= words.begin[k] + 2, "a short word");
      check(k == 0 || words.begin[k] == words.end[k - 1] + 1, "words are not one space apart");
    }
  }
  const Counted one = count(texts, tokenizer, grams, 1);
  const Counted three = count(texts, tokenizer, grams, 3);
  check(one.list.text == three.list.text && one.list.offsets == three.list.offsets, "terms differ");
  check(one.list.texts == three.list.texts && one.list.occurrences == three.list.occurrences,
        "counts differ");
  same(one.rows, three.rows);
  data::Terms terms;
  const std::string padded = one.list.text + std::string(8, '\0');
  for (size_t k = 0; k + 1 < one.list.offsets.size(); ++k) {
    const auto begin = static_cast<size_t>(one.list.offsets[k]);
    const auto end = static_cast<size_t>(one.list.offsets[k + 1]);
    check(terms.add({padded.data() + begin, end - begin}) == k, "a term comes twice");
  }
  const std::vector<float> idf(terms.size(), 1.5f);
  same(one.rows, data::transform(texts, tokenizer, grams, terms, {idf.data(), true, data::Norm::kL2}, 2));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  run(bytes, size);
  return 0;
}

#if !defined(XMC_LIBFUZZER)
int main(int argc, char** argv) {
  const double seconds = argc > 1 ? std::atof(argv[1]) : 10;
  const uint64_t seed = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1;
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
  Rng rng(seed);
  const auto start = std::chrono::steady_clock::now();
  int64_t runs = 0;
  while (std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() < seconds) {
    std::string input(1, static_cast<char>(rng.below(8)));
    // now and then more texts than one block holds
    for (uint32_t k = rng.below(rng.below(20) == 0 ? 2000 : 60); k > 0; --k) {
      input += rng.below(10) == 0 ? std::string(1, static_cast<char>(rng.below(256)))
                                  : pieces[rng.below(static_cast<uint32_t>(pieces.size()))];
    }
    LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(input.data()), input.size());
    ++runs;
  }
  std::printf("fuzz_tokens: %lld inputs in %.0f s, seed %llu\n", static_cast<long long>(runs), seconds,
              static_cast<unsigned long long>(seed));
}
#endif
