#include "core/numa.h"

#include <algorithm>
#include <cctype>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <thread>

#include "core/buffer.h"
#include "core/parallel.h"

#if defined(_WIN32)
#define WIN32_LEAN_AND_MEAN
#if !defined(NOMINMAX)
#define NOMINMAX
#endif
#include <windows.h>

#include <bit>
#elif defined(__linux__)
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif
#if defined(__GLIBC__)
#include <malloc.h>
#endif

namespace xmc {
namespace {

constexpr int kMaxId = 1 << 16;
[[maybe_unused]] const char* const kSysfsNodes = "/sys/devices/system/node";

bool read_file(const std::string& path, std::string* text) {
  std::ifstream file(path);
  if (!file) return false;
  text->assign(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  return !file.bad();
}

#if defined(__linux__)
// From the kernel's mempolicy interface.
constexpr int kMpolPreferred = 1;
constexpr unsigned kMpolMove = 2;

std::vector<int> current_cpus() {
  std::vector<int> cpus;
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) return cpus;
  for (int c = 0; c < CPU_SETSIZE; ++c) {
    if (CPU_ISSET(c, &set)) cpus.push_back(c);
  }
  return cpus;
}

bool set_cpus(const std::vector<int>& cpus) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int c : cpus) {
    if (c < CPU_SETSIZE) CPU_SET(c, &set);
  }
  return sched_setaffinity(0, sizeof set, &set) == 0;
}

uintptr_t page_size() {
  return static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
}
#endif

}  // namespace

std::vector<int> parse_cpulist(const std::string& text) {
  const auto fail = [&] {
    throw std::invalid_argument("cpulist: expected e.g. \"0-3,8\", got \"" + text + "\"");
  };
  std::vector<int> out;
  size_t at = 0, size = text.size();
  while (size > 0 && std::isspace(static_cast<unsigned char>(text[size - 1]))) --size;
  const auto number = [&] {
    const size_t start = at;
    int value = 0;
    for (; at < size && text[at] >= '0' && text[at] <= '9'; ++at) {
      value = value * 10 + (text[at] - '0');
      if (value > kMaxId) fail();
    }
    if (at == start) fail();
    return value;
  };
  while (at < size) {
    const int first = number();
    int last = first;
    if (at < size && text[at] == '-') {
      ++at;
      last = number();
      if (last < first) fail();
    }
    for (int k = first; k <= last; ++k) out.push_back(k);
    if (at < size && (text[at++] != ',' || at == size)) fail();
  }
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

Topology read_topology(const std::string& root, const std::vector<int>& allowed) {
  Topology nodes;
  std::string text;
  if (read_file(root + "/online", &text)) {
    for (const int id : parse_cpulist(text)) {
      if (!read_file(root + "/node" + std::to_string(id) + "/cpulist", &text)) continue;
      NumaNode node{id, {}};
      for (const int cpu : parse_cpulist(text)) {
        if (allowed.empty() || std::binary_search(allowed.begin(), allowed.end(), cpu)) {
          node.cpus.push_back(cpu);
        }
      }
      if (!node.cpus.empty()) nodes.push_back(std::move(node));
    }
  }
  if (nodes.empty()) nodes.push_back({0, allowed});
  return nodes;
}

Topology machine_topology() {
#if defined(__linux__)
  return read_topology(kSysfsNodes, current_cpus());
#else
  return {NumaNode{}};
#endif
}

NodeGuard::NodeGuard([[maybe_unused]] const Topology& nodes, [[maybe_unused]] int thread) {
#if defined(__linux__)
  if (nodes.size() < 2) return;
  std::vector<int> before = current_cpus();
  if (set_cpus(nodes[node_of_thread(nodes, thread)].cpus)) before_ = std::move(before);
#endif
}

NodeGuard::~NodeGuard() {
#if defined(__linux__)
  if (!before_.empty()) set_cpus(before_);
#endif
}

bool move_to_node([[maybe_unused]] MemoryRange range, [[maybe_unused]] int node) {
#if defined(__linux__) && defined(SYS_mbind)
  // Whole pages inside the range only: its neighbours' memory stays as it is.
  const uintptr_t page = page_size(), start = reinterpret_cast<uintptr_t>(range.data);
  const uintptr_t first = (start + page - 1) / page * page, last = (start + range.bytes) / page * page;
  if (last <= first) return true;
  constexpr size_t kBits = 8 * sizeof(unsigned long);
  std::vector<unsigned long> mask(static_cast<size_t>(node) / kBits + 1, 0ul);
  mask[static_cast<size_t>(node) / kBits] |= 1ul << (static_cast<size_t>(node) % kBits);
  return syscall(SYS_mbind, first, last - first, kMpolPreferred, mask.data(), mask.size() * kBits + 1,
                 kMpolMove) == 0;
#else
  return false;
#endif
}

std::vector<int> page_nodes([[maybe_unused]] MemoryRange range, [[maybe_unused]] int64_t max_pages) {
  std::vector<int> nodes;
#if defined(__linux__) && defined(SYS_move_pages)
  if (range.bytes == 0 || max_pages <= 0) return nodes;
  const uintptr_t page = page_size(), start = reinterpret_cast<uintptr_t>(range.data) / page * page;
  const uintptr_t count = (reinterpret_cast<uintptr_t>(range.data) + range.bytes - start + page - 1) / page;
  const uintptr_t step = std::max<uintptr_t>(1, count / static_cast<uintptr_t>(max_pages));
  std::vector<void*> pages;
  for (uintptr_t k = 0; k < count && pages.size() < static_cast<size_t>(max_pages); k += step) {
    pages.push_back(reinterpret_cast<void*>(start + k * page));
  }
  nodes.assign(pages.size(), -1);
  if (syscall(SYS_move_pages, 0, pages.size(), pages.data(), nullptr, nodes.data(), 0) != 0) {
    nodes.assign(pages.size(), -1);
  }
  for (int& node : nodes) node = std::max(node, -1);  // error codes of single pages
#endif
  return nodes;
}

void advise_huge([[maybe_unused]] void* data, [[maybe_unused]] int64_t bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  constexpr uintptr_t page = uintptr_t{2} << 20;
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(data) + page - 1) / page * page;
  const uintptr_t end = (reinterpret_cast<uintptr_t>(data) + static_cast<uintptr_t>(bytes)) / page * page;
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
#endif
}

void give_back_freed() {
#if defined(__GLIBC__)
  malloc_trim(0);
#endif
}

int available_cpus() {
#if defined(__linux__)
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
#elif defined(_WIN32)
  DWORD_PTR process = 0, system = 0;  // both 0 if the process runs in several groups of 64 CPUs
  if (GetProcessAffinityMask(GetCurrentProcess(), &process, &system) && process)
    return std::popcount(process);
#endif
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

}  // namespace xmc
