// The C API of turns (turns.h).
#include <atomic>
#include <chrono>
#include <memory>
#include <utility>

#include "tape.h"

#define LLMX_API extern "C" __attribute__((visibility("default")))
using llmx::Engine;

// Share a budget of threads with the engines of other processes, by a file that all can write. Before the first step. 0, or -1 where that
// cannot be: then this engine computes at any time.
LLMX_API int llmx_engine_turns(Engine* engine, const char* file, int budget, int hold_us) try {
  auto turns = std::make_unique<llmx::Turns>(file, budget, engine->pool().threads(), hold_us);
  if (!turns->ready()) return -1;
  engine->pool().share(std::move(turns));
  return 0;
} catch (const std::bad_alloc&) {
  return -1;
}

// out: how often the engine waited for a turn so far, and for how many microseconds. -1 where it takes no turns.
LLMX_API int llmx_engine_turn_waits(Engine* engine, int64_t* out) {
  const llmx::Turns* turns = engine->pool().turns();
  if (!turns) return -1;
  out[0] = turns->waits(), out[1] = turns->waited_us();
  return 0;
}

// For tests: a phase of n chunks that keep their thread for `us` microseconds each, in a turn where the engine takes turns. inside: counts the
// threads within a chunk, in memory that processes share. Gives the most that any chunk saw there.
LLMX_API int llmx_test_phase(Engine* engine, std::atomic<int32_t>* inside, int n, int us) {
  const llmx::Pool::Turn turn(engine->pool());
  engine->pool().wake();
  std::atomic<int32_t> most{0};
  auto chunk = [&](int64_t, int) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(us);
    int32_t seen = inside->fetch_add(1) + 1;
    do {
      for (int32_t before = most.load(); before < seen && !most.compare_exchange_weak(before, seen);) continue;
      seen = inside->load();
    } while (std::chrono::steady_clock::now() < until);
    inside->fetch_sub(1);
  };
  engine->pool().each(n, chunk);
  return most.load();
}
