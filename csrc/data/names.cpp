#include "data/names.h"

#include <algorithm>
#include <tuple>

#include "core/parallel.h"

namespace xmc::data {
namespace {

constexpr int64_t kRows = 64;  // rows per block

std::string_view unit(const Units& units, size_t i) {
  return {units.text.data() + units.begin[i], units.end[i] - units.begin[i]};
}

}  // namespace

struct Names::Scratch {
  Units units;
  std::vector<uint32_t> roots;
  std::vector<Hit> hits;
  std::string root;
};

Names::Names(const std::vector<std::string_view>& texts, const int32_t* labels, const Analyzer& analyzer,
             Spellings spellings, std::vector<std::string> endings)
    : spellings_(std::move(spellings)), endings_(std::move(endings)) {
  std::sort(endings_.begin(), endings_.end(), [](const std::string& a, const std::string& b) {
    return a.size() != b.size() ? a.size() > b.size() : a < b;
  });
  Units units;
  std::string scratch;
  for (size_t i = 0; i < texts.size(); ++i) {
    analyzer.split(texts[i], units);
    if (units.begin.empty()) continue;
    Name name;
    name.label = labels[i];
    name.words.assign(units.text.data() + units.begin.front(), units.end.back() - units.begin.front());
    for (size_t w = 0; w < units.begin.size(); ++w)
      name.roots.push_back(vocabulary_.add(root(unit(units, w), scratch)));
    names_.push_back(std::move(name));
  }
  std::sort(names_.begin(), names_.end(), [](const Name& a, const Name& b) {
    return std::tie(a.roots, a.label, a.words) < std::tie(b.roots, b.label, b.words);
  });
  first_.assign(vocabulary_.size() + 1, 0);
  for (const Name& name : names_) ++first_[name.roots[0] + 1];
  for (size_t r = 1; r < first_.size(); ++r) first_[r] += first_[r - 1];
}

std::string_view Names::root(std::string_view word, std::string& scratch) const {
  scratch = word;
  for (const auto& [from, to] : spellings_) {
    for (size_t at = scratch.find(from); at != scratch.npos; at = scratch.find(from, at + to.size()))
      scratch.replace(at, from.size(), to);
  }
  size_t size = scratch.size();
  for (const std::string& ending : endings_) {
    if (size >= ending.size() + kRoot && scratch.ends_with(ending)) {
      size -= ending.size();
      break;
    }
  }
  scratch.append(Vocabulary::kPad, '\0');
  return {scratch.data(), size};
}

Names::Range Names::narrow(Range range, size_t depth, uint32_t next) const {
  const auto from = names_.begin() + static_cast<std::ptrdiff_t>(range.begin);
  const auto to = names_.begin() + static_cast<std::ptrdiff_t>(range.end);
  // Names that end before this depth come first.
  const auto below = [&](const Name& name, uint32_t r) {
    return name.roots.size() <= depth || name.roots[depth] < r;
  };
  const auto above = [&](uint32_t r, const Name& name) {
    return name.roots.size() > depth && r < name.roots[depth];
  };
  const auto low = std::lower_bound(from, to, next, below);
  const auto high = std::upper_bound(low, to, next, above);
  return {static_cast<size_t>(low - names_.begin()), static_cast<size_t>(high - names_.begin())};
}

void Names::scan(const Units& units, int32_t before, int32_t head, Scratch& scratch) const {
  const size_t n = units.begin.size();
  scratch.roots.resize(n);
  for (size_t i = 0; i < n; ++i) scratch.roots[i] = vocabulary_.find(root(unit(units, i), scratch.root));
  size_t covered = 0;  // the names found so far end before this word
  for (size_t i = 0; i < n; ++i) {
    const uint32_t start = scratch.roots[i];
    if (start == Vocabulary::kNone || first_[start] == first_[start + 1]) continue;
    Range range{first_[start], first_[start + 1]};
    Range best{0, 0};
    size_t length = 0;
    for (size_t depth = 1;; ++depth) {
      if (names_[range.begin].roots.size() == depth) {
        best = range;
        length = depth;
      }
      if (i + depth >= n || scratch.roots[i + depth] == Vocabulary::kNone) break;
      range = narrow(range, depth, scratch.roots[i + depth]);
      if (range.begin == range.end) break;
    }
    if (length == 0 || i + length <= covered) continue;
    covered = i + length;
    const std::string_view words{units.text.data() + units.begin[i],
                                 units.end[i + length - 1] - units.begin[i]};
    size_t last = best.begin;
    int32_t ambiguity = 0;
    for (; last < best.end && names_[last].roots.size() == length; ++last) {
      ambiguity += last == best.begin || names_[last].label != names_[last - 1].label;
    }
    const int32_t at = before + static_cast<int32_t>(i);
    for (size_t k = best.begin; k < last;) {  // names of one label that have the same roots count once
      bool exact = false;
      const int32_t label = names_[k].label;
      for (; k < last && names_[k].label == label; ++k) exact |= names_[k].words == words;
      scratch.hits.push_back({label, at, static_cast<int32_t>(length), ambiguity, at < head, exact});
    }
  }
}

NameMatches Names::find(const Corpus& corpus, const Analyzer& analyzer, int64_t head, int threads) const {
  const int64_t n = corpus.rows();
  const int64_t blocks = chunk_count(n, kRows);
  std::vector<NameMatches> parts(static_cast<size_t>(blocks));
  std::vector<Scratch> scratches(static_cast<size_t>(std::max(threads, 1)));
  parallel_for(blocks, threads, [&](int64_t block, int thread) {
    NameMatches& part = parts[static_cast<size_t>(block)];
    Scratch& scratch = scratches[static_cast<size_t>(thread)];
    const int64_t stop = std::min((block + 1) * kRows, n);
    for (int64_t row = block * kRows; row < stop; ++row) {
      scratch.hits.clear();
      int32_t before = 0;
      auto until = static_cast<int32_t>(std::min<int64_t>(head, INT32_MAX));
      for (size_t f = 0; f < corpus.fields.size(); ++f) {
        analyzer.split(corpus.fields[f][static_cast<size_t>(row)], scratch.units);
        const auto words = static_cast<int32_t>(scratch.units.begin.size());
        if (f == 0 && corpus.fields.size() > 1) until = words;
        scan(scratch.units, before, until, scratch);
        before += words;
      }
      std::sort(scratch.hits.begin(), scratch.hits.end(), [](const Hit& a, const Hit& b) {
        return a.label != b.label ? a.label < b.label : a.at < b.at;
      });
      const size_t first = part.labels.size();
      for (const Hit& hit : scratch.hits) {
        if (part.labels.size() == first || part.labels.back() != hit.label) {
          part.labels.push_back(hit.label);
          part.count.push_back(0);
          part.first.push_back(hit.at);
          part.in_head.push_back(0);
          part.exact.push_back(0);
          part.words.push_back(hit.words);
          part.ambiguity.push_back(hit.ambiguity);
        }
        ++part.count.back();
        part.in_head.back() += hit.in_head;
        part.exact.back() += hit.exact;
        part.words.back() = std::max(part.words.back(), hit.words);
        part.ambiguity.back() = std::min(part.ambiguity.back(), hit.ambiguity);
      }
      part.indptr.push_back(static_cast<int64_t>(part.labels.size() - first));
      part.row_words.push_back(before);
    }
  });
  NameMatches out;
  out.indptr.push_back(0);
  for (const NameMatches& part : parts) {
    for (const int64_t size : part.indptr) out.indptr.push_back(out.indptr.back() + size);
    const auto append = [&](std::vector<int32_t> NameMatches::* member) {
      (out.*member).insert((out.*member).end(), (part.*member).begin(), (part.*member).end());
    };
    for (const auto member :
         {&NameMatches::labels, &NameMatches::count, &NameMatches::first, &NameMatches::in_head,
          &NameMatches::exact, &NameMatches::words, &NameMatches::ambiguity, &NameMatches::row_words}) {
      append(member);
    }
  }
  return out;
}

}  // namespace xmc::data
