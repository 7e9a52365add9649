#include <cstring>

#include "bind/bind.h"
#include "data/names.h"
#include "data/tfidf.h"
#include "data/utf8.h"

namespace xmc::bind {
using namespace data;
namespace {

// What the bytes of the texts belong to, beside the views of them.
struct BoundCorpus {
  Corpus corpus;
  std::vector<py::object> owners;
};

// Whether a text has a capital sigma (bytes CE A3), whose lower case depends on its neighbours.
bool has_sigma(std::string_view text) {
  for (size_t at = text.find('\xCE'); at != text.npos; at = text.find('\xCE', at + 1)) {
    if (at + 1 < text.size() && text[at + 1] == '\xA3') return true;
  }
  return false;
}

// resolve_sigma(str) -> bytes, for texts with a capital sigma; or None.
class CorpusBuilder {
 public:
  CorpusBuilder(BoundCorpus& out, const py::object& resolve_sigma) : out_(out), resolve_(resolve_sigma) {}

  void add_list(const py::list& texts) {
    auto& views = out_.corpus.fields.emplace_back();
    views.reserve(texts.size());
    for (const py::handle text : texts) views.push_back(view_of(text, views.size()));
  }

  void add_column(const Array<uint8_t>& bytes, const Array<int64_t>& offsets) {
    auto& views = out_.corpus.fields.emplace_back();
    const auto* const data = reinterpret_cast<const char*>(bytes.data());
    const auto n = static_cast<size_t>(offsets.size() - 1);
    views.reserve(n);
    for (size_t i = 0; i < n; ++i) {
      const int64_t begin = offsets.data()[i];
      const int64_t end = offsets.data()[i + 1];
      if (begin < 0 || begin > end || end > bytes.size()) throw std::out_of_range("offsets do not fit");
      views.emplace_back(data + begin, end - begin);
    }
    out_.owners.push_back(bytes);
    if (resolve_.is_none() || n == 0) return;
    for (auto& view : views) {
      if (!has_sigma(view)) continue;
      view = keep(resolve_(py::reinterpret_steal<py::object>(
          PyUnicode_DecodeUTF8(view.data(), static_cast<py::ssize_t>(view.size()), "surrogatepass"))));
    }
  }

 private:
  std::string_view keep(py::object bytes) {
    out_.owners.push_back(std::move(bytes));
    const py::object& owner = out_.owners.back();
    return {PyBytes_AS_STRING(owner.ptr()), static_cast<size_t>(PyBytes_GET_SIZE(owner.ptr()))};
  }

  // ASCII str objects and bytes as they are, other str objects as UTF-8. The list keeps the first two alive.
  std::string_view view_of(py::handle text, size_t position) {
    if (PyBytes_Check(text.ptr())) {
      return {PyBytes_AS_STRING(text.ptr()), static_cast<size_t>(PyBytes_GET_SIZE(text.ptr()))};
    }
    if (!PyUnicode_Check(text.ptr())) {
      throw std::invalid_argument("texts must hold str, got " + std::string(Py_TYPE(text.ptr())->tp_name) +
                                  " at position " + std::to_string(position));
    }
    if (PyUnicode_IS_ASCII(text.ptr())) {
      return {reinterpret_cast<const char*>(PyUnicode_1BYTE_DATA(text.ptr())),
              static_cast<size_t>(PyUnicode_GET_LENGTH(text.ptr()))};
    }
    PyObject* bytes = PyUnicode_AsEncodedString(text.ptr(), "utf-8", "surrogatepass");
    if (!bytes) throw py::error_already_set();
    const std::string_view view = keep(py::reinterpret_steal<py::object>(bytes));
    return !resolve_.is_none() && has_sigma(view) ? keep(resolve_(text)) : view;
  }

  BoundCorpus& out_;
  const py::object& resolve_;
};

// fields: lists of str or bytes, or pairs (bytes, offsets).
std::unique_ptr<BoundCorpus> make_corpus(const py::list& fields, const std::vector<double>& weights,
                                         const py::object& resolve_sigma) {
  auto out = std::make_unique<BoundCorpus>();
  out->corpus.weights = weights;
  CorpusBuilder builder(*out, resolve_sigma);
  for (const py::handle field : fields) {
    if (py::isinstance<py::tuple>(field)) {
      const auto pair = py::reinterpret_borrow<py::tuple>(field);
      builder.add_column(pair[0].cast<Array<uint8_t>>(), pair[1].cast<Array<int64_t>>());
    } else {
      builder.add_list(field.cast<py::list>());
      out->owners.push_back(py::reinterpret_borrow<py::object>(field));
    }
  }
  for (const auto& texts : out->corpus.fields) {
    if (texts.size() != out->corpus.fields[0].size())
      throw std::invalid_argument("fields of different lengths");
  }
  if (weights.size() != out->corpus.fields.size())
    throw std::invalid_argument("one weight per field expected");
  return out;
}

AnalyzerKind kind_from_name(const std::string& name) {
  if (name == "word") return AnalyzerKind::kWord;
  if (name == "char") return AnalyzerKind::kChar;
  if (name == "char_wb") return AnalyzerKind::kCharWb;
  throw std::invalid_argument("analyzer must be word, char or char_wb, got \"" + name + "\"");
}

Norm norm_from_name(const std::string& name) {
  if (name == "l2") return Norm::kL2;
  if (name == "l1") return Norm::kL1;
  if (name == "none") return Norm::kNone;
  throw std::invalid_argument("norm must be l1, l2 or none, got \"" + name + "\"");
}

std::unique_ptr<Vocabulary> make_vocabulary(const py::bytes& text, const Array<int64_t>& offsets) {
  const std::string padded = std::string(text) + std::string(Vocabulary::kPad, '\0');
  auto terms = std::make_unique<Vocabulary>();
  for (py::ssize_t i = 0; i + 1 < offsets.size(); ++i) {
    const int64_t begin = offsets.at(i);
    const int64_t end = offsets.at(i + 1);
    if (begin < 0 || begin > end || end > static_cast<int64_t>(padded.size() - Vocabulary::kPad)) {
      throw std::invalid_argument("offsets do not fit the text of the terms");
    }
    const auto id = terms->add({padded.data() + begin, static_cast<size_t>(end - begin)});
    if (static_cast<py::ssize_t>(id) != i) throw std::invalid_argument("the terms are not distinct");
  }
  return terms;
}

// An analyzer with the arrays it looks at.
struct BoundAnalyzer {
  std::vector<py::object> owners;
  std::unique_ptr<Vocabulary> stop_words;
  std::unique_ptr<Analyzer> analyzer;
};

std::unique_ptr<BoundAnalyzer> make_analyzer(const std::string& kind, int64_t low, int64_t high,
                                             bool lowercase, const Array<uint8_t>& word_bits,
                                             const Array<uint16_t>& pages, const Array<uint32_t>& cells,
                                             const py::bytes& replacements,
                                             const std::vector<std::string>& stop_words) {
  auto out = std::make_unique<BoundAnalyzer>();
  out->owners = {word_bits, pages, cells, replacements};
  if (!stop_words.empty()) {
    out->stop_words = std::make_unique<Vocabulary>();
    for (const std::string& word : stop_words) {
      const std::string padded = word + std::string(Vocabulary::kPad, '\0');
      out->stop_words->add({padded.data(), word.size()});
    }
  }
  AnalyzerOptions options{kind_from_name(kind), low, high, lowercase, {}, word_bits.data(), word_bits.size(),
                          out->stop_words.get()};
  if (pages.size() > 0) {
    if (pages.size() != 0x1100) throw std::invalid_argument("4352 pages expected");
    options.fold = {pages.data(), cells.data(), PyBytes_AS_STRING(replacements.ptr())};
  }
  out->analyzer = std::make_unique<Analyzer>(options);
  return out;
}

Columns columns_of(const Vocabulary* vocabulary, int64_t n_columns, int64_t n_idf) {
  const int64_t n = vocabulary ? vocabulary->size() : n_columns;
  if (n_idf != n && n_idf != 0) throw std::invalid_argument("one idf per column, or none, expected");
  return {vocabulary, static_cast<uint32_t>(n_columns)};
}

const float* idf_of(const Array<float>& idf) {
  return idf.size() > 0 ? idf.data() : nullptr;
}

py::tuple wrap(TermRows&& rows) {
  return py::make_tuple(to_numpy(std::move(rows.indptr)), to_numpy(std::move(rows.indices)),
                        to_numpy(std::move(rows.values)));
}

}  // namespace

void bind_text(py::module_& m) {
  py::class_<Vocabulary>(m, "Vocabulary")
      .def(py::init(&make_vocabulary), py::arg("text"), py::arg("offsets").noconvert());
  py::class_<BoundAnalyzer>(m, "Analyzer")
      .def(py::init(&make_analyzer), py::arg("kind"), py::arg("low"), py::arg("high"), py::arg("lowercase"),
           py::arg("word_bits").noconvert(), py::arg("pages").noconvert(), py::arg("cells").noconvert(),
           py::arg("replacements"), py::arg("stop_words"));
  py::class_<BoundCorpus>(m, "Corpus")
      .def(py::init(&make_corpus), py::arg("fields"), py::arg("weights"), py::arg("resolve_sigma"))
      .def("n_rows", [](const BoundCorpus& c) { return c.corpus.rows(); });
  py::class_<TermCounts>(m, "TermCounts")
      .def(py::init([](const BoundCorpus& texts, const BoundAnalyzer& analyzer, uint32_t hashed,
                       bool keep_rows, int threads) {
             const py::gil_scoped_release release;
             return std::make_unique<TermCounts>(texts.corpus, *analyzer.analyzer, hashed, keep_rows,
                                                 threads);
           }),
           py::arg("texts"), py::arg("analyzer"), py::arg("hashed"), py::arg("keep_rows"), py::arg("threads"))
      .def("n_terms", &TermCounts::n_terms)
      .def(
          "select",
          [](TermCounts& counts, int64_t low, int64_t high) {
            TermList list = counts.select(low, high);
            return py::make_tuple(py::bytes(list.text), to_numpy(std::move(list.offsets)),
                                  to_numpy(std::move(list.rows)), to_numpy(std::move(list.occurrences)));
          },
          py::arg("low"), py::arg("high"))
      .def(
          "rows",
          [](TermCounts& counts, const Array<int32_t>& columns, const Array<float>& idf, bool sublinear,
             const std::string& norm, int threads) {
            const Weighting weighting{idf_of(idf), sublinear, norm_from_name(norm)};
            TermRows rows;
            {
              const py::gil_scoped_release release;
              rows = counts.rows(columns.data(), weighting, threads);
            }
            return wrap(std::move(rows));
          },
          py::arg("columns").noconvert(), py::arg("idf").noconvert(), py::arg("sublinear"), py::arg("norm"),
          py::arg("threads"));
  m.def(
      "transform_texts",
      [](const BoundCorpus& texts, const BoundAnalyzer& analyzer, const Vocabulary* vocabulary,
         int64_t hashed, const Array<float>& idf, bool sublinear, const std::string& norm, int threads) {
        const Columns columns = columns_of(vocabulary, hashed, idf.size());
        const Weighting weighting{idf_of(idf), sublinear, norm_from_name(norm)};
        TermRows rows;
        {
          const py::gil_scoped_release release;
          rows = transform(texts.corpus, *analyzer.analyzer, columns, weighting, threads);
        }
        return wrap(std::move(rows));
      },
      py::arg("texts"), py::arg("analyzer"), py::arg("vocabulary").none(true), py::arg("hashed"),
      py::arg("idf").noconvert(), py::arg("sublinear"), py::arg("norm"), py::arg("threads"));
  py::class_<Names>(m, "Names")
      .def(py::init([](const BoundCorpus& names, const Array<int32_t>& labels, const BoundAnalyzer& analyzer,
                       Names::Spellings spellings, std::vector<std::string> endings) {
             for (const auto& [from, to] : spellings)
               if (from.empty()) throw std::invalid_argument("a spelling that replaces nothing");
             if (names.corpus.fields.size() != 1 || names.corpus.rows() != labels.size())
               throw std::invalid_argument("one label per name expected");
             return std::make_unique<Names>(names.corpus.fields[0], labels.data(), *analyzer.analyzer,
                                            std::move(spellings), std::move(endings));
           }),
           py::arg("names"), py::arg("labels").noconvert(), py::arg("analyzer"), py::arg("spellings"),
           py::arg("endings"))
      .def(
          "find",
          [](const Names& names, const BoundCorpus& texts, const BoundAnalyzer& analyzer, int64_t head,
             int threads) {
            NameMatches found;
            {
              const py::gil_scoped_release release;
              found = names.find(texts.corpus, *analyzer.analyzer, head, threads);
            }
            return py::make_tuple(to_numpy(std::move(found.indptr)), to_numpy(std::move(found.labels)),
                                  to_numpy(std::move(found.count)), to_numpy(std::move(found.first)),
                                  to_numpy(std::move(found.in_head)), to_numpy(std::move(found.exact)),
                                  to_numpy(std::move(found.words)), to_numpy(std::move(found.ambiguity)),
                                  to_numpy(std::move(found.row_words)));
          },
          py::arg("texts"), py::arg("analyzer"), py::arg("head"), py::arg("threads"));
  m.def(
      "find_terms",
      [](const py::bytes& text, const BoundAnalyzer& analyzer, const Vocabulary* vocabulary, int64_t hashed) {
        const Columns columns{vocabulary, static_cast<uint32_t>(hashed)};
        py::list out;
        for (const TermSpan& s : find_terms(std::string_view(text), *analyzer.analyzer, columns)) {
          out.append(py::make_tuple(s.from, s.to, s.column));
        }
        return out;
      },
      py::arg("text"), py::arg("analyzer"), py::arg("vocabulary").none(true), py::arg("hashed"));
}

}  // namespace xmc::bind
