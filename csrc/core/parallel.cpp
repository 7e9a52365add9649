#include "core/parallel.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <limits>
#include <mutex>
#include <thread>
#include <vector>

namespace xmc {
namespace {

using Clock = std::chrono::steady_clock;

std::atomic<void (*)()> interrupt_hook{nullptr};
std::atomic<int> thread_limit{0};  // 0: not set yet

int threads_from_environment() {
  if (const char* text = std::getenv("OMP_NUM_THREADS")) {
    const long value = std::strtol(text, nullptr, 10);
    if (value > 0) return static_cast<int>(std::min<long>(value, 1024));
  }
  return available_cpus();
}

struct Job {
  const std::function<void(int64_t, int)>& fn;
  const int64_t blocks;
  std::atomic<int64_t> next{0};
  std::atomic<bool> stop{false};
  std::mutex mutex{};
  std::exception_ptr error{};
  int64_t error_block = std::numeric_limits<int64_t>::max();

  void fail(int64_t block) {
    const std::lock_guard<std::mutex> lock(mutex);
    if (block < error_block) {
      error_block = block;
      error = std::current_exception();
    }
    stop.store(true, std::memory_order_relaxed);
  }

  void work(int thread) {
    auto polled = Clock::now();
    while (!stop.load(std::memory_order_relaxed)) {
      const int64_t block = next.fetch_add(1, std::memory_order_relaxed);
      if (block >= blocks) return;
      try {
        if (thread == 0 && Clock::now() - polled > std::chrono::milliseconds(50)) {
          polled = Clock::now();
          check_interrupt();
        }
        fn(block, thread);
      } catch (...) {
        fail(block);
      }
    }
  }
};

}  // namespace

void parallel_for(int64_t blocks, int threads, const std::function<void(int64_t, int)>& fn) {
  if (blocks <= 0) return;
  Job job{fn, blocks};
  const int extra = static_cast<int>(std::min<int64_t>(std::max(threads, 1), blocks)) - 1;
  std::vector<std::thread> helpers;
  helpers.reserve(extra);
  for (int t = 1; t <= extra; ++t) {
    try {
      helpers.emplace_back([&job, t] { job.work(t); });
    } catch (const std::system_error&) {
      break;  // the system gives no more threads: go on with those we have
    }
  }
  job.work(0);
  for (auto& helper : helpers) helper.join();
  if (job.error) std::rethrow_exception(job.error);
}

void set_interrupt_hook(void (*hook)()) {
  interrupt_hook.store(hook);
}

void check_interrupt() {
  if (auto* hook = interrupt_hook.load()) hook();
}

int default_threads() {
  const int limit = thread_limit.load();
  return limit > 0 ? limit : threads_from_environment();
}

void set_default_threads(int threads) {
  thread_limit.store(std::max(threads, 1));
}

}  // namespace xmc
