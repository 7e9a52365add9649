// Fuzz target of the sparse text parser (csrc/data/text.h): no crash, no read out of bounds, no leak, and
// what is accepted is sorted, in range, finite, the same for any number of threads, and survives write and
// read. The first byte of the input chooses the options, the rest is the text.
//
// With libFuzzer (clang++ -fsanitize=fuzzer,address,undefined -DXMC_LIBFUZZER) or, with any compiler, with
// the main below: fuzz_text SECONDS [SEED].
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/rng.h"
#include "data/text.h"
#include "data/write.h"
#include "drive.h"

namespace {

using namespace xmc;

struct Matrix {
  std::vector<int64_t> indptr{0}, label_indptr{0};
  std::vector<int32_t> indices, labels;
  std::vector<float> values;
  data::TextCounts counts;
  bool operator==(const Matrix& o) const {
    return indptr == o.indptr && label_indptr == o.label_indptr && indices == o.indices &&
           labels == o.labels && values == o.values;
  }
};

[[noreturn]] void die(const char* what) {
  std::fprintf(stderr, "%s\n", what);
  std::abort();
}

void check(bool right, const char* what) {
  if (!right) die(what);
}

Matrix read(std::string_view text, const data::TextFormat& format, int threads) {
  data::Scan scan = data::scan(text, threads);
  const auto lines = static_cast<size_t>(scan.lines);
  const auto colons = static_cast<size_t>(scan.colons);
  std::vector<int64_t> sizes(lines), label_sizes(lines);
  Matrix m;
  m.indices.resize(colons);
  m.values.resize(colons);
  m.counts = data::parse(scan, format, {sizes.data(), label_sizes.data(), m.indices.data(), m.values.data()},
                         threads);
  m.indices.resize(static_cast<size_t>(m.counts.entries));
  m.values.resize(static_cast<size_t>(m.counts.entries));
  m.labels.resize(static_cast<size_t>(m.counts.labels));
  data::copy_labels(scan, m.labels.data());
  for (size_t i = 0; i < static_cast<size_t>(m.counts.rows); ++i) {
    m.indptr.push_back(m.indptr.back() + sizes[i]);
    m.label_indptr.push_back(m.label_indptr.back() + label_sizes[i]);
  }
  check(m.indptr.back() == m.counts.entries && m.label_indptr.back() == m.counts.labels, "counts differ");
  return m;
}

template <class T>
void check_rows(const std::vector<int64_t>& indptr, const std::vector<T>& ids, int64_t limit) {
  for (size_t i = 0; i + 1 < indptr.size(); ++i) {
    int64_t previous = -1;
    for (int64_t k = indptr[i]; k < indptr[i + 1]; ++k) {
      const int64_t id = ids[static_cast<size_t>(k)];
      check(id > previous && id < limit, "ids out of order or range");
      previous = id;
    }
  }
}

void check_round_trip(const Matrix& m, data::TextFormat format) {
  const CsrView<int32_t, float> x{m.counts.rows, 0, m.indptr.data(), m.indices.data(), m.values.data()};
  const CsrView<int32_t, float> y{m.counts.rows, 0, m.label_indptr.data(), m.labels.data(), nullptr};
  const std::string text = data::format_rows(x, y, format.label_field, 0, m.counts.rows, 2);
  format.base = 0;
  format.blank = data::Blank::kPoint;
  format.comments = false;
  check(read(text, format, 1) == m, "write and read differ");
}

void run(const uint8_t* bytes, size_t size) {
  if (size == 0) return;
  data::TextFormat format;
  format.name = "f";
  format.n_features = 1000;
  format.n_labels = 50;
  format.base = bytes[0] & 1;
  format.label_field = !(bytes[0] & 2);
  format.comments = bytes[0] & 4;
  format.sum_duplicates = bytes[0] & 8;
  format.blank = static_cast<data::Blank>((bytes[0] >> 4) % 3);
  const std::unique_ptr<char[]> copy(new char[size]);  // its end is where the sanitizer looks
  std::copy(bytes + 1, bytes + size, copy.get() + 1);
  const std::string_view text(copy.get() + 1, size - 1);
  std::string errors[2];
  Matrix results[2];
  for (int k = 0; k < 2; ++k) {
    try {
      results[k] = read(text, format, k == 0 ? 1 : 3);
    } catch (const std::invalid_argument& error) {
      errors[k] = error.what();
      // The reason, without the token of the input that it quotes.
      const std::string reason = errors[k].substr(0, errors[k].find(", got "));
      check(reason.rfind("f:", 0) == 0 && reason.find("unreadable") == std::string::npos, "bad message");
    }
  }
  check(errors[0] == errors[1], "errors differ between threads");
  check(results[0] == results[1], "results differ between threads");
  if (!errors[0].empty()) return;
  for (const float v : results[0].values) check(std::isfinite(v), "not finite");
  check_rows(results[0].indptr, results[0].indices, format.n_features);
  check_rows(results[0].label_indptr, results[0].labels, format.n_labels);
  check_round_trip(results[0], format);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  run(bytes, size);
  return 0;
}

#if !defined(XMC_LIBFUZZER)
namespace {

const std::vector<std::string> kSeeds = {
    "1,2 3:0.5 7:1e-3 999:2\n 1:1\n\n4\n",
    "0 1:16777217 2:3.4028235677973365e38 3:1e-46 4:0.1234567890123456789012345\r\n",
    "3:1 2:2 3:4 3:3e38 3:3e38 # comment\n#\n49,48,0 0:-0\n",
    "12345678,9 123456789:1\n1:nan 2:inf 5:+1.e-5 6:.5 7:- 8:. 9:e5\n",
};

const std::vector<std::string> kPieces = {" ", "\n",   ",", ":",        "1:2 ", "0.",  "e",
                                          "-", "\r\n", "#", "99999999", "\t",   "\xff"};

std::string mutate(std::string text, Rng& rng, const std::vector<std::string>& pool) {
  for (uint32_t k = 1 + rng.below(4); k > 0; --k) {
    const auto at = rng.below(static_cast<uint32_t>(text.size()) + 1);
    const auto length = std::min<size_t>(text.size() - at, 1 + rng.below(8));
    switch (rng.below(6)) {
      case 0:
        text.erase(at, length);
        break;
      case 1:
        text.insert(at, kPieces[rng.below(static_cast<uint32_t>(kPieces.size()))]);
        break;
      case 2:
        if (at < text.size()) text[at] = static_cast<char>(rng.below(256));
        break;
      case 3:
        text.insert(at, text.substr(at, length));
        break;
      case 4:
        text.resize(at);
        break;
      default: {
        const std::string& other = pool[rng.below(static_cast<uint32_t>(pool.size()))];
        text = text.substr(0, at) + other.substr(rng.below(static_cast<uint32_t>(other.size()) + 1));
      }
    }
  }
  if (text.size() > 4096) text.resize(4096);
  return text;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> pool = kSeeds;
  return drive(argc, argv, [&pool](Rng& rng) {
    std::string text = mutate(pool[rng.below(static_cast<uint32_t>(pool.size()))], rng, pool);
    const std::string input = static_cast<char>(rng.below(48)) + text;
    if (pool.size() < 500) {
      pool.push_back(std::move(text));
    } else {
      pool[kSeeds.size() + rng.below(static_cast<uint32_t>(pool.size() - kSeeds.size()))] = std::move(text);
    }
    return input;
  });
}
#endif
