#include "bind/bind.h"

// No lock of the interpreter is needed: what is shared is either not changed after it was made, atomic (core/simd.cpp,
// core/parallel.cpp), or has a lock of its own (core/buffer_pool.cpp).
PYBIND11_MODULE(_core, m, pybind11::mod_gil_not_used()) {
  m.doc() = "Compiled core of xmc_fast. Private: use the Python modules.";
  xmc::bind::bind_core(m);
  xmc::bind::bind_predict(m);
  xmc::bind::bind_numa(m);
  xmc::bind::bind_fanin(m);
  xmc::bind::bind_linear(m);
  xmc::bind::bind_cluster(m);
  xmc::bind::bind_mach(m);
  xmc::bind::bind_metrics(m);
  xmc::bind::bind_data(m);
  xmc::bind::bind_text(m);
  xmc::bind::bind_decide(m);
  xmc::bind::bind_knn(m);
  xmc::bind::bind_gather(m);
  xmc::bind::bind_spmm(m);
  xmc::bind::bind_tree(m);
}
