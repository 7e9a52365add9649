#include <optional>

#include "bind/bind.h"
#include "data/synthetic.h"
#include "data/table.h"
#include "data/text.h"
#include "data/write.h"

namespace xmc::bind {
using namespace data;
namespace {

data::Blank blank_from_name(const std::string& name) {
  if (name == "point") return data::Blank::kPoint;
  if (name == "skip") return data::Blank::kSkip;
  if (name == "error") return data::Blank::kError;
  throw std::invalid_argument("blank must be point, skip or error, got \"" + name + "\"");
}

// numpy's own memory: not zeroed, and in huge pages where the system has them.
template <class T>
py::array_t<T> empty(int64_t n) {
  return py::array_t<T>(static_cast<py::ssize_t>(n));
}

// text[begin:end] of any buffer of bytes.
std::string_view slice(const py::buffer_info& info, int64_t begin, int64_t end) {
  if (begin < 0 || begin > end || end > info.size * info.itemsize) throw std::out_of_range("bad slice");
  return {static_cast<const char*>(info.ptr) + begin, static_cast<size_t>(end - begin)};
}

py::tuple parse_text(const py::buffer& text, int64_t begin, int64_t end, const data::TextFormat& format,
                     int threads) {
  const py::buffer_info info = text.request();
  const std::string_view view = slice(info, begin, end);
  data::Scan scan;
  {
    const py::gil_scoped_release release;
    scan = data::scan(view, threads);
  }
  auto sizes = empty<int64_t>(scan.lines);
  auto label_sizes = empty<int64_t>(scan.lines);
  auto indices = empty<int32_t>(scan.colons);
  auto values = empty<float>(scan.colons);
  const data::TextOutput out{sizes.mutable_data(), label_sizes.mutable_data(), indices.mutable_data(),
                             values.mutable_data()};
  data::TextCounts counts;
  {
    const py::gil_scoped_release release;
    counts = data::parse(scan, format, out, threads);
  }
  auto labels = empty<int32_t>(counts.labels);
  data::copy_labels(scan, labels.mutable_data());
  const py::slice rows(0, counts.rows, 1);
  const py::slice entries(0, counts.entries, 1);
  return py::make_tuple(sizes[rows], indices[entries], values[entries], label_sizes[rows], labels, scan.lines,
                        counts.max_feature, counts.max_label);
}

// (bytes, offsets, rows or None, missing, lists, integers)
py::tuple wrap(TextColumn&& column) {
  const int64_t size = column.offsets.back();
  char* const bytes = column.bytes.get();
  py::capsule free(column.bytes.release(), [](void* p) { delete[] static_cast<char*>(p); });
  const py::array_t<uint8_t> array(size, reinterpret_cast<uint8_t*>(bytes), free);
  const py::object rows = column.rows.empty() ? py::object(py::none()) : to_numpy(std::move(column.rows));
  return py::make_tuple(array, to_numpy(std::move(column.offsets)), rows, column.missing, column.lists,
                        column.integers);
}

py::tuple split_table(const py::buffer& text, int64_t begin, int64_t end, const TableFormat& format,
                      int threads) {
  const py::buffer_info info = text.request();
  const std::string_view view = slice(info, begin, end);
  Table table;
  {
    const py::gil_scoped_release release;
    table = data::split_table(view, format, threads);
  }
  py::list columns;
  for (TextColumn& column : table.columns) columns.append(wrap(std::move(column)));
  return py::make_tuple(table.rows, table.blank, table.consumed, table.lines, columns);
}

// The texts of a column as str objects.
py::list decode_texts(const Array<uint8_t>& bytes, const Array<int64_t>& offsets) {
  const auto n = offsets.size() - 1;
  py::list out(n);
  const auto* data = reinterpret_cast<const char*>(bytes.data());
  for (py::ssize_t i = 0; i < n; ++i) {
    const int64_t begin = offsets.data()[i];
    const int64_t end = offsets.data()[i + 1];
    if (begin < 0 || begin > end || end > bytes.size()) throw std::out_of_range("offsets do not fit");
    PyObject* text = PyUnicode_DecodeUTF8(data + begin, end - begin, "surrogatepass");
    if (!text) throw py::error_already_set();
    PyList_SET_ITEM(out.ptr(), i, text);
  }
  return out;
}

}  // namespace

void bind_data(py::module_& m) {
  m.def(
      "parse_text",
      [](const py::buffer& text, int64_t begin, int64_t end, const std::string& name, int64_t first_line,
         int64_t first_row, int64_t max_rows, int64_t n_features, int64_t n_labels, int64_t base,
         bool label_field, bool comments, bool sum_duplicates, const std::string& blank, int threads) {
        return parse_text(text, begin, end,
                          {name, first_line, first_row, max_rows, n_features, n_labels, base, label_field,
                           comments, sum_duplicates, blank_from_name(blank)},
                          threads);
      },
      py::arg("text"), py::arg("begin"), py::arg("end"), py::arg("name"), py::arg("first_line"),
      py::arg("first_row"), py::arg("max_rows"), py::arg("n_features"), py::arg("n_labels"), py::arg("base"),
      py::arg("label_field"), py::arg("comments"), py::arg("sum_duplicates"), py::arg("blank"),
      py::arg("threads"));
  m.def(
      "format_rows",
      [](const Array<int64_t>& x_indptr, const Array<int32_t>& x_indices, const Array<float>& x_data,
         const Array<int64_t>& y_indptr, const Array<int32_t>& y_indices, bool labels, int64_t first,
         int64_t last, int threads) {
        const auto x = csr_view(0, x_indptr, x_indices, x_data);
        const CsrView<int32_t, float> y{y_indptr.size() - 1, 0, y_indptr.data(), y_indices.data(), nullptr};
        std::string text;
        {
          const py::gil_scoped_release release;
          text = data::format_rows(x, y, labels, first, last, threads);
        }
        return py::bytes(text);
      },
      py::arg("x_indptr").noconvert(), py::arg("x_indices").noconvert(), py::arg("x_data").noconvert(),
      py::arg("y_indptr").noconvert(), py::arg("y_indices").noconvert(), py::arg("labels"), py::arg("first"),
      py::arg("last"), py::arg("threads"));
  m.def(
      "make_synthetic",
      [](int64_t rows, const Array<int32_t>& feature_ids, const Array<int32_t>& label_ids,
         double features_per_point, double labels_per_point, double beta, double signal, int64_t prototype,
         uint64_t seed, int threads) {
        const data::SyntheticOptions options{rows,
                                             feature_ids.size(),
                                             label_ids.size(),
                                             features_per_point,
                                             labels_per_point,
                                             beta,
                                             signal,
                                             prototype,
                                             seed};
        data::Synthetic s;
        {
          const py::gil_scoped_release release;
          s = data::make_synthetic(options, feature_ids.data(), label_ids.data(), threads);
        }
        return py::make_tuple(to_numpy(std::move(s.x.indptr)), to_numpy(std::move(s.x.indices)),
                              to_numpy(std::move(s.x.values)), to_numpy(std::move(s.y.indptr)),
                              to_numpy(std::move(s.y.indices)));
      },
      py::arg("rows"), py::arg("feature_ids").noconvert(), py::arg("label_ids").noconvert(),
      py::arg("features_per_point"), py::arg("labels_per_point"), py::arg("beta"), py::arg("signal"),
      py::arg("prototype"), py::arg("seed"), py::arg("threads"));
  m.def(
      "split_csv",
      [](const py::buffer& text, int64_t begin, int64_t end, const std::string& name, int64_t first_line,
         char separator, int64_t n_fields, const std::vector<int64_t>& positions,
         const std::vector<std::string>& names, bool final, int64_t chunk, int threads) {
        TableFormat format{false, name, first_line, separator, n_fields, positions, names, {}, final, chunk};
        return split_table(text, begin, end, format, threads);
      },
      py::arg("text"), py::arg("begin"), py::arg("end"), py::arg("name"), py::arg("first_line"),
      py::arg("separator"), py::arg("n_fields"), py::arg("positions"), py::arg("names"), py::arg("final"),
      py::arg("chunk"), py::arg("threads"));
  m.def(
      "split_json",
      [](const py::buffer& text, int64_t begin, int64_t end, const std::string& name, int64_t first_line,
         const std::vector<std::string>& paths, const std::vector<bool>& labels, bool final, int64_t chunk,
         int threads) {
        TableFormat format{true, name, first_line, ',', 0, {}, paths, {}, final, chunk};
        for (const bool is_label : labels) format.roles.push_back(is_label ? Role::kLabels : Role::kText);
        if (format.roles.size() != paths.size()) throw std::invalid_argument("one role per path expected");
        return split_table(text, begin, end, format, threads);
      },
      py::arg("text"), py::arg("begin"), py::arg("end"), py::arg("name"), py::arg("first_line"),
      py::arg("paths"), py::arg("labels"), py::arg("final"), py::arg("chunk"), py::arg("threads"));
  m.def(
      "split_lines",
      [](const py::buffer& text, int64_t begin, int64_t end, const std::string& name, int64_t first_line,
         int threads) {
        const py::buffer_info info = text.request();
        const std::string_view view = slice(info, begin, end);
        TextColumn column;
        {
          const py::gil_scoped_release release;
          column = data::split_lines(view, name, first_line, threads);
        }
        return wrap(std::move(column));
      },
      py::arg("text"), py::arg("begin"), py::arg("end"), py::arg("name"), py::arg("first_line"),
      py::arg("threads"));
  m.def(
      "first_record",
      [](const py::buffer& text, int64_t begin, int64_t end, const std::string& name, char separator) {
        const py::buffer_info info = text.request();
        const Record record = data::first_record(slice(info, begin, end), separator, name);
        py::list fields;
        for (const std::string& field : record.fields) fields.append(py::bytes(field));
        return py::make_tuple(fields, record.size);
      },
      py::arg("text"), py::arg("begin"), py::arg("end"), py::arg("name"), py::arg("separator"));
  m.def(
      "split_labels",
      [](const Array<uint8_t>& bytes, const Array<int64_t>& offsets,
         const std::optional<Array<int64_t>>& rows, const std::string& separator) {
        const int64_t n_rows = (rows ? rows->size() : offsets.size()) - 1;
        LabelRows out;
        {
          const py::gil_scoped_release release;
          out = data::split_labels(reinterpret_cast<const char*>(bytes.data()), offsets.data(),
                                   rows ? rows->data() : nullptr, n_rows, separator);
        }
        py::list names;
        for (const std::string& name : out.names) {
          names.append(py::reinterpret_steal<py::str>(
              PyUnicode_DecodeUTF8(name.data(), static_cast<py::ssize_t>(name.size()), "surrogatepass")));
        }
        return py::make_tuple(to_numpy(std::move(out.indptr)), to_numpy(std::move(out.ids)), names,
                              out.repeated);
      },
      py::arg("bytes").noconvert(), py::arg("offsets").noconvert(), py::arg("rows"), py::arg("separator"));
  m.def("decode_texts", &decode_texts, py::arg("bytes").noconvert(), py::arg("offsets").noconvert());
}

}  // namespace xmc::bind
