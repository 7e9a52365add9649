// Checks, calls and results that many bindings share.
#pragma once

#include "bind/bind.h"

namespace xmc::bind {

inline void need_size(const char* name, int64_t got, int64_t expected) {
  if (got != expected) {
    throw std::invalid_argument(std::string(name) + " has " + std::to_string(got) + " entries, expected " +
                                std::to_string(expected));
  }
}

// What f returns, computed while other Python threads run.
template <class F>
auto without_gil(F&& f) {
  const py::gil_scoped_release release;
  return f();
}

// Null for an empty array.
template <class T>
const T* or_null(const Array<T>& values) {
  return values.size() ? values.data() : nullptr;
}

// An n x k result that `fill` writes, one pointer per array, while other Python threads run.
template <class... T, class F>
py::tuple filled(py::ssize_t n, py::ssize_t k, F&& fill) {
  std::tuple<py::array_t<T>...> out{py::array_t<T>({n, k})...};
  std::apply([&](auto&... a) { without_gil([&, ... p = a.mutable_data()] { fill(p...); }); }, out);
  return std::apply([](auto&... a) { return py::make_tuple(a...); }, out);
}

}  // namespace xmc::bind
