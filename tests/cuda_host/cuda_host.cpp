// The fiber engine of cuda_host.h. Compile it without sanitizer flags.
#include "cuda_host.h"

#include <ucontext.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#if defined(XMC_HOST_ASAN)
#include <sanitizer/common_interface_defs.h>
#elif defined(XMC_HOST_TSAN)
#include <sanitizer/tsan_interface.h>
#endif

namespace cuda_host {

Thread* current;
uint3 block_index, block_size, grid_size;

namespace {

constexpr size_t kStack = 256 * 1024;
enum class State { ready, waiting, done };

struct Fiber : Thread {
  State state = State::done;
  ucontext_t context{};
  std::vector<char> stack = std::vector<char>(kStack);
  void* sanitizer = nullptr;
};

std::vector<std::unique_ptr<Fiber>> fibers;
ucontext_t scheduler;
void* scheduler_sanitizer = nullptr;
const void* scheduler_stack = nullptr;
size_t scheduler_stack_size = 0;
const std::function<void()>* work;
// What orders the fibers, told to TSan. Two tokens for barriers in turn: who waits at the next barrier
// already must not seem to be ordered before who has just left this one.
char barrier_tokens[2], start_token, end_token;
unsigned barriers;  // passed
int votes[2];       // for the barriers in turn as well

void release([[maybe_unused]] void* token) {
#if defined(XMC_HOST_TSAN)
  __tsan_release(token);
#endif
}
void acquire([[maybe_unused]] void* token) {
#if defined(XMC_HOST_TSAN)
  __tsan_acquire(token);
#endif
}

void to_fiber(Fiber& fiber) {
  current = &fiber;
#if defined(XMC_HOST_ASAN)
  __sanitizer_start_switch_fiber(&scheduler_sanitizer, fiber.stack.data(), kStack);
#elif defined(XMC_HOST_TSAN)
  __tsan_switch_to_fiber(fiber.sanitizer, __tsan_switch_to_fiber_no_sync);
#endif
  swapcontext(&scheduler, &fiber.context);
#if defined(XMC_HOST_ASAN)
  __sanitizer_finish_switch_fiber(scheduler_sanitizer, nullptr, nullptr);
#endif
}

void to_scheduler(Fiber& fiber) {
#if defined(XMC_HOST_ASAN)
  __sanitizer_start_switch_fiber(&fiber.sanitizer, scheduler_stack, scheduler_stack_size);
#elif defined(XMC_HOST_TSAN)
  __tsan_switch_to_fiber(scheduler_sanitizer, __tsan_switch_to_fiber_no_sync);
#endif
  swapcontext(&fiber.context, &scheduler);
#if defined(XMC_HOST_ASAN)
  __sanitizer_finish_switch_fiber(fiber.sanitizer, &scheduler_stack, &scheduler_stack_size);
#endif
}

// A fiber serves one CUDA thread of block after block.
void fiber_main() {
#if defined(XMC_HOST_ASAN)
  __sanitizer_finish_switch_fiber(nullptr, &scheduler_stack, &scheduler_stack_size);
#endif
  for (;;) {
    auto& self = static_cast<Fiber&>(*current);
    acquire(&start_token);
    (*work)();
    self.state = State::done;
    release(&end_token);
    to_scheduler(self);
  }
}

void add_fiber() {
  auto fiber = std::make_unique<Fiber>();
  getcontext(&fiber->context);
  fiber->context.uc_stack.ss_sp = fiber->stack.data();
  fiber->context.uc_stack.ss_size = kStack;
  makecontext(&fiber->context, fiber_main, 0);
#if defined(XMC_HOST_TSAN)
  if (!scheduler_sanitizer) scheduler_sanitizer = __tsan_get_current_fiber();
  fiber->sanitizer = __tsan_create_fiber(0);
#endif
  fibers.push_back(std::move(fiber));
}

void run_block(size_t threads, uint64_t& random) {
  for (size_t t = 0; t < threads; ++t) {
    fibers[t]->state = State::ready;
    const auto i = static_cast<unsigned>(t);
    fibers[t]->index = {i % block_size.x, i / block_size.x % block_size.y, i / (block_size.x * block_size.y)};
  }
  votes[0] = votes[1] = 0;
  release(&start_token);
  for (;;) {
    // Start anywhere, go up or down: no thread may rely on another having run before.
    random = random * 6364136223846793005u + 1442695040888963407u;
    const size_t start = (random >> 33) % threads, step = (random >> 20) % 2 ? 1 : threads - 1;
    for (size_t k = 0; k < threads; ++k) {
      Fiber& fiber = *fibers[(start + k * step) % threads];
      if (fiber.state == State::ready) to_fiber(fiber);
    }
    size_t waiting = 0;
    for (size_t t = 0; t < threads; ++t) waiting += fibers[t]->state == State::waiting;
    if (waiting == 0) break;
    if (waiting != threads) {
      std::fprintf(stderr, "cuda_host: divergent barrier: %zu of %zu threads of block (%u, %u) wait\n",
                   waiting, threads, block_index.x, block_index.y);
      std::exit(3);
    }
    for (size_t t = 0; t < threads; ++t) fibers[t]->state = State::ready;
    ++barriers;
    votes[barriers % 2] = 0;
  }
  acquire(&end_token);
}

}  // namespace

void barrier() {
  auto& self = static_cast<Fiber&>(*current);
  self.state = State::waiting;
  char* token = &barrier_tokens[barriers % 2];
  release(token);
  to_scheduler(self);
  acquire(token);
}

int barrier_or(int vote) {
  int& all = votes[barriers % 2];
  all |= vote != 0;
  barrier();
  return all;
}

void run(dim3 grid, dim3 block, const std::function<void()>& body) {
  const size_t threads = size_t{block.x} * block.y * block.z;
  if (threads == 0 || threads > 1024 || !grid.x || !grid.y || !grid.z || grid.y > 65535 || grid.z > 65535) {
    std::fprintf(stderr, "cuda_host: impossible launch\n");
    std::exit(3);
  }
  while (fibers.size() < threads) add_fiber();
  work = &body;
  block_size = {block.x, block.y, block.z};
  grid_size = {grid.x, grid.y, grid.z};
  uint64_t random = 1;
  for (unsigned z = 0; z < grid.z; ++z) {
    for (unsigned y = 0; y < grid.y; ++y) {
      for (unsigned x = 0; x < grid.x; ++x) {
        block_index = {x, y, z};
        run_block(threads, random);
      }
    }
  }
}

}  // namespace cuda_host
