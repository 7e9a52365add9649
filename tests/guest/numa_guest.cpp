// The init process of a guest with two memory nodes (numa_guest.py): topology, pinning and replicas of
// core/numa.h on real nodes. Prints one line per fact, then switches the guest off.
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>

#include "core/numa.h"

struct Values {
  std::vector<float> data;
};
std::vector<xmc::MemoryRange> memory_of(const Values& v) {
  return {{v.data.data(), v.data.size() * sizeof(float)}};
}

int main() {
  mount("proc", "/proc", "proc", 0, nullptr);
  mount("sysfs", "/sys", "sysfs", 0, nullptr);
  const xmc::Topology nodes = xmc::machine_topology();
  for (const xmc::NumaNode& node : nodes) {
    std::printf("node %d cpus", node.id);
    for (const int cpu : node.cpus) std::printf(" %d", cpu);
    std::printf("\n");
  }
  for (int thread = 0; thread < 4; ++thread) {
    const xmc::NodeGuard pinned(nodes, thread);
    unsigned cpu = 0, node = 0;
    syscall(SYS_getcpu, &cpu, &node, nullptr);
    std::printf("thread %d on node %u\n", thread, node);
  }
  const Values original{std::vector<float>(4 << 20, 1.f)};
  const xmc::NumaReplicas<Values> replicas(nodes, 4, [&] { return original; });
  for (const xmc::NodePlacement& p : replicas.placement()) {
    std::printf("replica %d pages %ld of %ld\n", p.node, static_cast<long>(p.pages_local),
                static_cast<long>(p.pages_seen));
  }
  std::printf("done\n");
  std::fflush(stdout);
  reboot(RB_POWER_OFF);
}
