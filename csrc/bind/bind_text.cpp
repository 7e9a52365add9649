#include "bind/bind.h"
#include "data/tfidf.h"

namespace xmc::bind {
namespace {

// Views of the texts: ASCII str objects as they are, others as UTF-8 bytes. The list keeps them alive.
std::vector<std::string_view> views(const py::list& texts) {
  std::vector<std::string_view> out;
  out.reserve(texts.size());
  for (const py::handle text : texts) {
    Py_ssize_t size = 0;
    const char* data = nullptr;
    if (PyBytes_Check(text.ptr())) {
      data = PyBytes_AS_STRING(text.ptr());
      size = PyBytes_GET_SIZE(text.ptr());
    } else {
      data = PyUnicode_AsUTF8AndSize(text.ptr(), &size);
    }
    if (!data) throw py::error_already_set();
    out.emplace_back(data, static_cast<size_t>(size));
  }
  return out;
}

data::Norm norm_from_name(const std::string& name) {
  if (name == "l2") return data::Norm::kL2;
  if (name == "l1") return data::Norm::kL1;
  if (name == "none") return data::Norm::kNone;
  throw std::invalid_argument("norm must be l1, l2 or none, got \"" + name + "\"");
}

py::tuple wrap(data::TermRows&& rows) {
  return py::make_tuple(to_numpy(std::move(rows.indptr)), to_numpy(std::move(rows.indices)),
                        to_numpy(std::move(rows.values)));
}

py::tuple wrap(data::TermList&& list) {
  return py::make_tuple(py::bytes(list.text), to_numpy(std::move(list.offsets)),
                        to_numpy(std::move(list.texts)), to_numpy(std::move(list.occurrences)));
}

std::unique_ptr<data::TermCounts> count_terms(const py::list& texts, bool lowercase,
                                              const Array<uint8_t>& word_bits, int64_t low, int64_t high,
                                              bool keep_rows, int threads) {
  const auto list = views(texts);
  const data::Tokenizer tokenizer(lowercase, word_bits.data(), word_bits.size());
  const py::gil_scoped_release release;
  return std::make_unique<data::TermCounts>(list, tokenizer, data::Grams{low, high}, keep_rows, threads);
}

std::unique_ptr<data::Terms> make_terms(const py::bytes& text, const Array<int64_t>& offsets) {
  const std::string padded = std::string(text) + std::string(8, '\0');
  auto terms = std::make_unique<data::Terms>();
  for (py::ssize_t i = 0; i + 1 < offsets.size(); ++i) {
    const int64_t begin = offsets.at(i);
    const int64_t end = offsets.at(i + 1);
    if (begin < 0 || begin > end || end > static_cast<int64_t>(padded.size()) - 8) {
      throw std::invalid_argument("offsets do not fit the text of the terms");
    }
    const auto id = terms->add({padded.data() + begin, static_cast<size_t>(end - begin)});
    if (static_cast<py::ssize_t>(id) != i) throw std::invalid_argument("the terms are not distinct");
  }
  return terms;
}

}  // namespace

void bind_text(py::module_& m) {
  py::class_<data::Terms>(m, "Terms")
      .def(py::init(&make_terms), py::arg("text"), py::arg("offsets").noconvert())
      .def(
          "transform",
          [](const data::Terms& terms, const py::list& texts, bool lowercase, const Array<uint8_t>& word_bits,
             int64_t low, int64_t high, const Array<float>& idf, bool sublinear, const std::string& norm,
             int threads) {
            if (idf.size() != terms.size()) throw std::invalid_argument("one idf per term expected");
            const auto list = views(texts);
            const data::Tokenizer tokenizer(lowercase, word_bits.data(), word_bits.size());
            const data::Weighting weighting{idf.data(), sublinear, norm_from_name(norm)};
            data::TermRows rows;
            {
              const py::gil_scoped_release release;
              rows = data::transform(list, tokenizer, {low, high}, terms, weighting, threads);
            }
            return wrap(std::move(rows));
          },
          py::arg("texts"), py::arg("lowercase"), py::arg("word_bits").noconvert(), py::arg("low"),
          py::arg("high"), py::arg("idf").noconvert(), py::arg("sublinear"), py::arg("norm"),
          py::arg("threads"));
  py::class_<data::TermCounts>(m, "TermCounts")
      .def(py::init(&count_terms), py::arg("texts"), py::arg("lowercase"), py::arg("word_bits").noconvert(),
           py::arg("low"), py::arg("high"), py::arg("keep_rows"), py::arg("threads"))
      .def("n_terms", &data::TermCounts::n_terms)
      .def(
          "select",
          [](data::TermCounts& counts, int64_t low, int64_t high) { return wrap(counts.select(low, high)); },
          py::arg("low"), py::arg("high"))
      .def(
          "rows",
          [](data::TermCounts& counts, const Array<int32_t>& columns, const Array<float>& idf, bool sublinear,
             const std::string& norm, int threads) {
            const data::Weighting weighting{idf.data(), sublinear, norm_from_name(norm)};
            data::TermRows rows;
            {
              const py::gil_scoped_release release;
              rows = counts.rows(columns.data(), weighting, threads);
            }
            return wrap(std::move(rows));
          },
          py::arg("columns").noconvert(), py::arg("idf").noconvert(), py::arg("sublinear"), py::arg("norm"),
          py::arg("threads"));
}

}  // namespace xmc::bind
