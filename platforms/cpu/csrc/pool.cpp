// Spin, then yield, then futex: a virtual machine wakes a sleeping thread in tens of microseconds, longer than most phases.
#include "pool.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <chrono>

namespace llmx {
namespace {

constexpr uint64_t kField = (1u << 20) - 1;
constexpr int kSpinRounds = 64;           // pauses between two looks at the clock
constexpr int64_t kSpinMicroseconds = 80;  // then yield
constexpr int kYields = 32;                // then sleep

inline void pause_cpu() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

inline uint64_t next_of(uint64_t claim) { return claim & kField; }
inline uint64_t chunks_of(uint64_t claim) { return (claim >> 20) & kField; }

int64_t now_us() {
  return std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

#if defined(__x86_64__)
FloatMode::FloatMode() : saved_(_mm_getcsr()) {
  _mm_setcsr((static_cast<unsigned>(saved_) | 0x8040u | 0x1f80u) & ~0x6000u);  // FTZ, DAZ, exceptions masked, round to nearest
}
FloatMode::~FloatMode() { _mm_setcsr(static_cast<unsigned>(saved_)); }
#elif defined(__aarch64__)
FloatMode::FloatMode() {
  __asm__ volatile("mrs %0, fpcr" : "=r"(saved_));
  const uint64_t flushed = (saved_ | (1ull << 24)) & ~(3ull << 22);
  __asm__ volatile("msr fpcr, %0" : : "r"(flushed));
}
FloatMode::~FloatMode() { __asm__ volatile("msr fpcr, %0" : : "r"(saved_)); }
#else
FloatMode::FloatMode() : saved_(0) {}
FloatMode::~FloatMode() { (void)saved_; }
#endif

Pool::Pool(int threads) : threads_(threads < 1 ? 1 : threads) {
  for (int i = 1; i < threads_; ++i) workers_.emplace_back([this, i] { worker(i); });
}

Pool::~Pool() {
  stop_.store(true);
  epoch_.fetch_add(1);
  syscall(SYS_futex, &epoch_, FUTEX_WAKE_PRIVATE, threads_, nullptr, nullptr, 0);
  for (auto& thread : workers_) thread.join();
}

void Pool::wake() {
  if (threads_ == 1) return;
  epoch_.fetch_add(1);
  if (sleepers_.load() > 0) syscall(SYS_futex, &epoch_, FUTEX_WAKE_PRIVATE, threads_, nullptr, nullptr, 0);
}

// Claims and runs chunks until the phase has none left. fn_ and context_ cannot change while a claimed chunk is not done.
void Pool::work(int index) {
  for (;;) {
    const uint64_t seen = claim_.load(std::memory_order_acquire);
    if (next_of(seen) >= chunks_of(seen)) return;
    const uint64_t mine = claim_.fetch_add(1, std::memory_order_acq_rel);
    const uint64_t chunk = next_of(mine);
    if (chunk >= chunks_of(mine)) return;
    fn_(context_, static_cast<int64_t>(chunk), index);
    done_.fetch_add(1, std::memory_order_release);
  }
}

void Pool::run(int64_t n, ChunkFn fn, void* context) {
  if (n <= 0) return;
  if (threads_ == 1 || n == 1) {
    for (int64_t i = 0; i < n; ++i) fn(context, i, 0);
    return;
  }
  ++phases_;
  fn_ = fn;
  context_ = context;
  done_.store(0, std::memory_order_relaxed);
  const uint64_t generation = (claim_.load(std::memory_order_relaxed) >> 40) + 1;
  claim_.store((generation << 40) | (static_cast<uint64_t>(n) << 20), std::memory_order_release);
  if (sleepers_.load() > 0) wake();
  work(0);
  for (int spins = 0; done_.load(std::memory_order_acquire) != n; ++spins) {
    if (spins < 4096) {
      pause_cpu();
    } else {
      sched_yield();  // a worker with a chunk was preempted
    }
  }
}

bool Pool::wait_for_work(uint32_t seen) {
  auto ready = [this] {
    const uint64_t claim = claim_.load(std::memory_order_acquire);
    return next_of(claim) < chunks_of(claim);
  };
  const int64_t until = now_us() + kSpinMicroseconds;
  do {
    for (int i = 0; i < kSpinRounds; ++i) {
      if (ready()) return true;
      pause_cpu();
    }
    if (stop_.load(std::memory_order_relaxed)) return false;
  } while (now_us() < until);
  for (int i = 0; i < kYields; ++i) {
    if (ready()) return true;
    sched_yield();
  }
  sleepers_.fetch_add(1);
  if (!ready() && !stop_.load()) syscall(SYS_futex, &epoch_, FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
  sleepers_.fetch_sub(1);
  return true;
}

void Pool::worker(int index) {
  FloatMode mode;
  while (!stop_.load(std::memory_order_relaxed)) {
    const uint32_t seen = epoch_.load();
    if (wait_for_work(seen)) work(index);
  }
}

}  // namespace llmx
