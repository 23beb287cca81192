// Spin, then yield, then futex: a virtual machine wakes a sleeping thread in tens of microseconds, longer than most phases.
#include "pool.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <chrono>
#include <climits>

#include "pause.h"

namespace llmx {
namespace {

constexpr int kSpinRounds = 64;           // pauses between two looks at the clock
constexpr int64_t kSpinMicroseconds = 80;  // then yield
constexpr int kTurnMicroseconds = 100;     // between two looks while the one who leads waits for a turn
constexpr int kYields = 32;                // then sleep
constexpr int64_t kAskedBytes = 24576;     // asked for in a wait: what memory brings in a few microseconds, and what leaves the cache to others
constexpr int kAskedLines = 2;             // between two looks at what is waited for
constexpr int kPatience = 4096;            // pauses in a wait for another: some 100 us
constexpr int64_t kCountMicroseconds = 30000;   // processors lost are counted over so long:
constexpr int64_t kCrowdedMicroseconds = 4000;  // one in so long is too many (alone one in 10 to 16 ms; beside a process that spins in 2.4 ms);
constexpr int kCrowdedCounts = 2;               // and after as many such counts there are fewer threads,
constexpr int64_t kFewerMicroseconds = 100000, kFewestMicroseconds = 1600000;  // for so long at first, and at most when it goes on

inline uint32_t next_of(uint64_t range) { return static_cast<uint32_t>(range); }
inline uint32_t end_of(uint64_t range) { return static_cast<uint32_t>(range >> 32); }

template <class Word>
void futex_wake(std::atomic<Word>* word) {
  syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

// Sleeps while the word is `seen`.
template <class Word>
void futex_wait(std::atomic<Word>* word, Word seen) {
  syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
}

// The one waited for stands in another processor's queue. A yield would leave it there; a processor that falls idle takes it over.
void stand_aside() {
  const timespec some{0, 50000};
  nanosleep(&some, nullptr);
}

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

Pool::Pool(int threads) : threads_(threads < 1 ? 1 : threads), level_(threads_), fewer_us_(kFewerMicroseconds), claims_(static_cast<size_t>(threads_)), active_(threads_) {
  for (int i = 1; i < threads_; ++i) workers_.emplace_back([this, i] { worker(i); });
}

Pool::~Pool() {
  stop_.store(true);
  epoch_.fetch_add(1);
  futex_wake(&epoch_);
  active_.store(0);
  futex_wake(&active_);
  for (auto& thread : workers_) thread.join();
}

// How many threads the next step is best run by. What is counted are involuntary switches of the whole process: its threads compete too.
int32_t Pool::threads_of_step(bool few_rows) {
  if (!few_rows) {
    since_ = 0;
    return threads_;
  }
  const int64_t now = now_us();
  if (since_ && now - since_ < kCountMicroseconds) return level_;
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const bool crowded = since_ && (usage.ru_nivcsw - switches_) * kCrowdedMicroseconds > now - since_;
  crowded_ = crowded ? crowded_ + 1 : 0;
  if (crowded_ == kCrowdedCounts) {
    level_ = std::max(1, level_ / 2);
    again_at_ = now + fewer_us_;
    fewer_us_ = std::min(2 * fewer_us_, kFewestMicroseconds);
    crowded_ = 0;
  } else if (level_ < threads_ && now > again_at_) {
    level_ = std::min(threads_, level_ * 2);
    again_at_ = now + fewer_us_;
  } else if (level_ == threads_ && since_ && !crowded) {
    fewer_us_ = kFewerMicroseconds;
  }
  since_ = now;
  switches_ = usage.ru_nivcsw;
  return level_;
}

void Pool::wake(bool few_rows) {
  if (threads_ == 1) return;
  const int32_t active = threads_of_step(few_rows);
  if (active != active_.load(std::memory_order_relaxed)) {
    active_.store(active);
    if (threads_ > 2) futex_wake(&active_);
  }
  parked_.store(false);
  if (active > 1) rouse();
}

void Pool::rouse() {
  epoch_.fetch_add(1);
  if (sleepers_.load() > 0) futex_wake(&epoch_);
}

void Pool::park() { parked_.store(true, std::memory_order_relaxed); }

// Claims and runs chunks until the phase has none left. fn_ and context_ cannot change while a claimed chunk is not done; a claim that
// comes when its phase is over gets a chunk of the next one, or none. turns: of the one who leads; false when the turn is to be given up first.
bool Pool::work(int index, Turns* turns) {
  for (int i = 0; i < threads_; ++i) {
    std::atomic<uint64_t>& range = claims_[static_cast<size_t>((index + i) % threads_)].range;
    for (;;) {
      if (turns && turns->due()) return false;
      const uint64_t seen = range.load(std::memory_order_acquire);
      if (next_of(seen) >= end_of(seen)) break;
      const uint64_t mine = range.fetch_add(1, std::memory_order_acq_rel);
      if (next_of(mine) >= end_of(mine)) break;
      fn_(context_, static_cast<int64_t>(next_of(mine)), index);
      done_.fetch_add(1, std::memory_order_release);
    }
  }
  return true;
}

void Pool::pause(int index) {
  const Reads* table = ahead_.load(std::memory_order_acquire);
  Claim& own = claims_[static_cast<size_t>(index)];
  if (table != own.asked) own.asked = table, own.asked_bytes = 0;
  if (!table || own.asked_bytes >= std::min(kAskedBytes, table[index].bytes) || active_.load(std::memory_order_relaxed) != threads_) return pause_cpu();
  for (const uint8_t* begin : table[index].begin) {
    for (int line = 0; begin && line < kAskedLines; ++line) __builtin_prefetch(begin + own.asked_bytes + line * 64, 0, 2);
  }
  own.asked_bytes += kAskedLines * 64;
}

void Pool::wait_done(int64_t n) {
  for (int spins = 0; done_.load(std::memory_order_acquire) != n; ++spins) {
    if (spins < kPatience) {
      pause(leader_);
    } else {
      stand_aside();  // a worker with a chunk was preempted
    }
  }
}

// In the middle of a phase of n chunks: takes back those that nobody has claimed, waits for the others, and puts them back in the next turn.
void Pool::pass_turn(int64_t n) {
  std::vector<uint64_t> back(claims_.size());
  int64_t left = 0;
  for (size_t i = 0; i < back.size(); ++i) {
    back[i] = claims_[i].range.exchange(0, std::memory_order_acq_rel);
    left += std::max<int64_t>(0, int64_t{end_of(back[i])} - next_of(back[i]));
  }
  wait_done(n - left);
  park();
  turns_->pass();
  for (size_t i = 0; i < back.size(); ++i) {
    if (next_of(back[i]) < end_of(back[i])) claims_[i].range.store(back[i], std::memory_order_release);
  }
  phase_.fetch_add(1);
  parked_.store(false);
  rouse();
}

void Pool::run(int64_t n, ChunkFn fn, void* context) {
  if (n <= 0) return;
  const int self = leader_;
  const int32_t active = active_.load(std::memory_order_relaxed);
  if (active == 1 || n == 1) {
    for (int64_t i = 0; i < n; ++i) {
      if (turns_ && turns_->due()) turns_->pass();
      fn(context, i, self);
    }
    return;
  }
  ++phases_;
  fn_ = fn;
  context_ = context;
  done_.store(0, std::memory_order_relaxed);
  uint64_t begin = 0;
  for (int i = 0; i < active; ++i) {  // the leader is one of the first two; ranges of those who sleep are empty
    const uint64_t end = static_cast<uint64_t>(n) * static_cast<uint64_t>(i + 1) / static_cast<uint64_t>(active);
    claims_[static_cast<size_t>(i)].range.store(end << 32 | begin, std::memory_order_release);
    begin = end;
  }
  phase_.fetch_add(1);
  if (sleepers_.load() > 0) rouse();
  while (!work(self, turns_.get())) pass_turn(n);
  wait_done(n);
}

uint32_t Pool::post(JobFn fn, void* context) {
  const uint32_t job = posted_.load(std::memory_order_relaxed);
  jobs_[job % kJobs] = {fn, context};
  posted_.store(job + 1);
  rouse();
  return job + 1;
}

// Runs the oldest job that has not ended, unless another does or `limit` jobs have ended.
bool Pool::lead(int index, uint32_t limit) {
  bool nobody = false;
  if (!job_waits() || !led_.compare_exchange_strong(nobody, true)) return false;
  const uint32_t job = ended_.load(std::memory_order_acquire);
  const bool mine = static_cast<int32_t>(job - limit) < 0;
  if (mine) {
    leader_ = index;
    jobs_[job % kJobs].fn(jobs_[job % kJobs].context);
    leader_ = 0;
    ended_.store(job + 1);
    if (watchers_.load() > 0) futex_wake(&ended_);
  }
  led_.store(false, std::memory_order_release);
  return mine;
}

void Pool::help(uint32_t job) {
  auto ended = [this, job] { return static_cast<int32_t>(ended_.load(std::memory_order_acquire) - job) >= 0; };
  if (ended()) return;
  FloatMode mode;
  uint32_t phase = phase_.load() - 1;  // one may be going on
  for (int spins = 0; !ended(); ++spins) {
    const uint32_t now = phase_.load(std::memory_order_acquire);
    if (now != phase) {
      phase = now;
      work(0);
      spins = 0;
    } else if (lead(0, job)) {
      spins = 0;
    } else if (turns_ && turns_->waiting()) {
      std::this_thread::sleep_for(std::chrono::microseconds(kTurnMicroseconds));
    } else if (spins < kPatience) {
      pause(0);
    } else if (active_.load(std::memory_order_relaxed) == 1) {
      watchers_.fetch_add(1);
      const uint32_t seen = ended_.load();
      if (!ended() && !job_waits()) futex_wait(&ended_, seen);
      watchers_.fetch_sub(1);
    } else {
      sched_yield();  // who leads was preempted, or does something alone; to sleep here would cost the next phase more
    }
  }
}

// phase: the last one that was looked at. False: the pool ends, or there was nothing.
bool Pool::wait_for_work(int index, uint32_t epoch, uint32_t* phase) {
  auto ready = [this, phase] {
    if (job_waits()) return true;
    const uint32_t now = phase_.load(std::memory_order_acquire);
    if (now == *phase) return false;
    *phase = now;
    return true;
  };
  const int64_t until = now_us() + kSpinMicroseconds;
  do {
    for (int i = 0; i < kSpinRounds; ++i) {
      if (ready()) return true;
      pause(index);
    }
    if (stop_.load(std::memory_order_relaxed)) return false;
  } while (!parked_.load(std::memory_order_relaxed) && now_us() < until);
  for (int i = 0; i < kYields && !parked_.load(std::memory_order_relaxed); ++i) {
    if (ready()) return true;
    sched_yield();
  }
  sleepers_.fetch_add(1);
  const bool found = ready();
  if (!found && !stop_.load()) futex_wait(&epoch_, epoch);
  sleepers_.fetch_sub(1);
  return found || ready();
}

void Pool::worker(int index) {
  FloatMode mode;
  uint32_t phase = 0;
  while (!stop_.load(std::memory_order_relaxed)) {
    const int32_t active = active_.load();
    if (stop_.load()) return;  // asked behind active_, whose last change is the end: who saw that one must not sleep for another
    if (index >= std::max(2, active)) {  // the first two stay: each can lead
      futex_wait(&active_, active);
      continue;
    }
    const uint32_t epoch = epoch_.load();
    if (!wait_for_work(index, epoch, &phase)) continue;
    if (!lead(index, posted_.load(std::memory_order_acquire))) work(index);
  }
}

}  // namespace llmx
