// Memory nodes (NUMA): topology, pinning, placement, and one replica of shared read-only data per node.
//
// No libnuma: the topology is read from sysfs, pinning and placement are raw system calls. On a machine with
// one node (and on systems other than Linux) nothing is read twice, copied or pinned.
//
//   const Topology nodes = machine_topology();
//   const NumaReplicas<Features> X(nodes, threads, [&] { return prepare(problem); });
//   parallel_for(tasks, threads, [&](int64_t task, int thread) {
//     const NodeGuard pinned(nodes, thread);         // this thread stays on its node during the task
//     solve(X.local(thread), task);                  // and reads the replica there
//   });
//
// Buffers a pinned thread allocates and first touches are on its node by the system's default policy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace xmc {

struct NumaNode {
  int id = 0;
  std::vector<int> cpus;  // ascending
};
// Nodes with at least one usable CPU, by id; never empty.
using Topology = std::vector<NumaNode>;

// "0-3,8,10-11" -> {0, 1, 2, 3, 8, 10, 11}; throws std::invalid_argument for anything else.
std::vector<int> parse_cpulist(const std::string& text);

// From a folder laid out like /sys/devices/system/node: `online` lists the nodes, node<k>/cpulist their CPUs.
// Offline nodes, nodes without CPUs and CPUs not in `allowed` (empty: all are) do not count. Without such a
// folder: one node 0.
Topology read_topology(const std::string& root, const std::vector<int>& allowed);
// This machine's, restricted to the CPUs this thread may run on.
Topology machine_topology();

// The node of a worker thread: round robin.
inline size_t node_of_thread(const Topology& nodes, int thread) {
  return static_cast<size_t>(thread) % nodes.size();
}

// Pins the calling thread to the CPUs of its node until the end of the scope. Nothing on one node.
class NodeGuard {
 public:
  NodeGuard(const Topology& nodes, int thread);
  ~NodeGuard();
  NodeGuard(const NodeGuard&) = delete;
  NodeGuard& operator=(const NodeGuard&) = delete;

 private:
  std::vector<int> before_;  // CPUs to go back to; empty: nothing was changed
};

struct MemoryRange {
  const void* data = nullptr;
  size_t bytes = 0;
};

// Moves the pages of a range to a node and keeps them there; false if the system cannot.
bool move_to_node(MemoryRange range, int node);
// The node of each page of a range (at most max_pages, evenly spread); -1 where unknown.
std::vector<int> page_nodes(MemoryRange range, int64_t max_pages);

// What was placed where, for reports.
struct NodePlacement {
  int node = 0;
  std::vector<int> cpus;
  int64_t replica_bytes = 0;  // of the large arrays of this node
  int64_t pages_seen = 0;     // a sample of the replica's pages
  int64_t pages_local = 0;    // of those, on this node
};

// One value of T per node used by `threads` threads. make() runs once on every node, on a thread pinned
// there; memory_of(const T&) -> std::vector<MemoryRange>, found beside T, lists its large arrays. With one
// node make() runs once, on the calling thread, and there is no copy.
template <class T>
class NumaReplicas {
 public:
  template <class Make>
  NumaReplicas(const Topology& nodes, int threads, const Make& make) : nodes_(nodes) {
    if (static_cast<size_t>(threads) < nodes_.size())
      nodes_.resize(static_cast<size_t>(threads > 0 ? threads : 1));
    values_.resize(nodes_.size());
    if (nodes_.size() == 1) {
      values_[0] = std::make_unique<T>(make());
      return;
    }
    for (size_t k = 0; k < nodes_.size(); ++k) {
      std::exception_ptr error;
      std::thread worker([&] {
        try {
          const NodeGuard pinned(nodes_, static_cast<int>(k));
          values_[k] = std::make_unique<T>(make());
          for (const MemoryRange range : memory_of(*values_[k])) move_to_node(range, nodes_[k].id);
        } catch (...) {
          error = std::current_exception();
        }
      });
      worker.join();
      if (error) std::rethrow_exception(error);
    }
  }

  // The nodes in use: pass them to NodeGuard.
  const Topology& nodes() const { return nodes_; }
  const T& local(int thread) const { return *values_[node_of_thread(nodes_, thread)]; }

  std::vector<NodePlacement> placement() const {
    std::vector<NodePlacement> out;
    for (size_t k = 0; k < nodes_.size(); ++k) {
      NodePlacement p{nodes_[k].id, nodes_[k].cpus, 0, 0, 0};
      for (const MemoryRange range : memory_of(*values_[k])) {
        p.replica_bytes += static_cast<int64_t>(range.bytes);
        for (const int node : page_nodes(range, 256)) {
          p.pages_seen += node >= 0;
          p.pages_local += node == p.node;
        }
      }
      out.push_back(std::move(p));
    }
    return out;
  }

 private:
  Topology nodes_;
  std::vector<std::unique_ptr<T>> values_;
};

}  // namespace xmc
