#include "bind/bind.h"
#include "core/numa.h"

namespace xmc::bind {
namespace {

using NodeList = std::vector<std::pair<int, std::vector<int>>>;  // (id, cpus)

NodeList to_list(const Topology& nodes) {
  NodeList out;
  for (const NumaNode& node : nodes) out.emplace_back(node.id, node.cpus);
  return out;
}

Topology to_topology(const NodeList& list) {
  if (list.empty()) throw std::invalid_argument("nodes: expected at least one, got none");
  Topology nodes;
  for (const auto& [id, cpus] : list) nodes.push_back({id, cpus});
  return nodes;
}

// An array as shared data, for the test of NumaReplicas.
struct Values {
  std::vector<float> data;
};
std::vector<MemoryRange> memory_of(const Values& v) {
  return {{v.data.data(), v.data.size() * sizeof(float)}};
}

}  // namespace

py::list placement_list(const std::vector<NodePlacement>& placement) {
  py::list out;
  for (const NodePlacement& p : placement) {
    py::dict d;
    d["node"] = p.node;
    d["cpus"] = p.cpus;
    d["replica_bytes"] = p.replica_bytes;
    d["pages_seen"] = p.pages_seen;
    d["pages_local"] = p.pages_local;
    out.append(d);
  }
  return out;
}

void bind_numa(py::module_& m) {
  m.def("parse_cpulist", &parse_cpulist, py::arg("text"));
  m.def(
      "numa_topology",
      [](const std::string& root, const std::vector<int>& allowed) {
        return to_list(read_topology(root, allowed));
      },
      py::arg("root"), py::arg("allowed"));
  m.def("numa_machine", [] { return to_list(machine_topology()); });
  // For the tests: fn() on this thread while it is pinned as worker `thread`.
  m.def(
      "numa_pinned_test",
      [](const NodeList& nodes, int thread, const py::function& fn) {
        const NodeGuard pinned(to_topology(nodes), thread);
        return fn();
      },
      py::arg("nodes"), py::arg("thread"), py::arg("fn"));
  // For the tests: replicas of an array; returns the placement, and per thread the address and the sum of
  // the array it sees.
  m.def(
      "numa_replicas_test",
      [](const NodeList& nodes, int threads, const Array<float>& values) {
        const Values original{std::vector<float>(values.data(), values.data() + values.size())};
        const NumaReplicas<Values> replicas(to_topology(nodes), threads, [&] { return original; });
        std::vector<std::pair<uintptr_t, double>> seen;
        for (int t = 0; t < threads; ++t) {
          const std::vector<float>& local = replicas.local(t).data;
          double total = 0;
          for (const float v : local) total += v;
          seen.emplace_back(reinterpret_cast<uintptr_t>(local.data()), total);
        }
        return py::make_tuple(placement_list(replicas.placement()), seen);
      },
      py::arg("nodes"), py::arg("threads"), py::arg("values").noconvert());
}

}  // namespace xmc::bind
