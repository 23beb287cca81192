// The thread pool. The calling thread is worker 0; the others wait between phases. A phase is n chunks. Each worker has a range of
// neighbouring ones and claims them one by one, in order, so that it reads memory in one direction, and what it asks for ahead is its
// own; when its range is empty it takes from the others'. A phase ends when all chunks are done, not when all threads have arrived, so
// a worker that was preempted before it claimed anything holds nobody up. Which thread takes a chunk changes no result.
//
// A job is a piece of serial work with phases in it, such as a step. `post` leaves it to whoever comes first: a worker that waits, or the
// calling thread once it comes to `help`. That one leads it, and the other helps; so the calling thread may do something else meanwhile,
// and no more threads compute than the pool has.
//
// Who waits asks for what it reads first in the next phase of products (`ahead`): memory is idle then, and a phase of few rows takes
// little longer than its weights need to come.
//
// Phases of few rows take some 50 us each. Where processors are shared with others, the thread that was preempted holds all up for a time
// slice, again and again; then fewer threads are faster. `wake` counts how often the process lost a processor, and takes threads out and in.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <thread>
#include <vector>

#include "turns.h"

namespace llmx {

using ChunkFn = void (*)(void* context, int64_t chunk, int worker);
using JobFn = void (*)(void* context);

// Where one thread begins to read in a phase of products: up to two places (the second null: one), which it reads at the same pace.
struct Reads {
  const uint8_t* begin[2];
  int64_t bytes;  // of each, at least
};

// Flush denormals to zero in SSE/AVX (and NEON) arithmetic for a scope; the caller's mode is restored.
class FloatMode {
 public:
  FloatMode();
  ~FloatMode();
  FloatMode(const FloatMode&) = delete;
  FloatMode& operator=(const FloatMode&) = delete;

 private:
  uint64_t saved_;
};

class Pool {
 public:
  explicit Pool(int threads);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int threads() const { return threads_; }
  // At the start of a step: sleeping workers begin to spin. few_rows: its phases are short.
  void wake(bool few_rows = false);
  void park();  // no more work for now, and the processors are wanted by others: workers sleep at once instead of spinning first
  // Runs fn for chunks [0, n), n < 2^31. With one thread or one chunk it runs here and nothing is handed over.
  void run(int64_t n, ChunkFn fn, void* context);
  int64_t phases() const { return phases_; }

  // What the next phase of products reads, one for each thread; null: nothing is known. `keep` holds such a table as long as the pool.
  void ahead(const Reads* next) { ahead_.store(next, std::memory_order_release); }
  const Reads* keep(std::vector<Reads> table) { return kept_.emplace_back(std::move(table)).data(); }

  static constexpr uint32_t kJobs = 2;  // posted and not ended, at most
  uint32_t post(JobFn fn, void* context);  // jobs run in order; returns the job's number
  void help(uint32_t job);                 // returns when the job has ended, and works until then
  void settle() { help(posted_.load(std::memory_order_relaxed)); }  // before the calling thread runs phases of its own

  // The pool computes in turn with others from here on. A turn ends within a phase too, between two chunks of the thread that leads.
  void share(std::unique_ptr<Turns> turns) { turns_ = std::move(turns); }
  const Turns* turns() const { return turns_.get(); }
  class Turn {  // one for its scope, where turns are taken at all
   public:
    explicit Turn(Pool& pool) : turns_(pool.turns_.get()) {
      if (turns_) turns_->take();
    }
    ~Turn() {
      if (turns_) turns_->give();
    }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    Turns* turns_;
  };

  template <class F>
  void each(int64_t n, F& body) {  // body(chunk, worker)
    run(n, [](void* context, int64_t chunk, int worker) { (*static_cast<F*>(context))(chunk, worker); }, &body);
  }

  // [0, n) in contiguous ranges of at least `grain`, about equal, as many for each thread and some, so that a late thread costs little:
  // body(begin, end, worker).
  template <class F>
  void over(int64_t n, int64_t grain, F body) {
    if (n <= 0) return;
    const int64_t most = threads_ == 1 && !turns_ ? 1 : threads_ * int64_t{16};
    int64_t chunks = std::max<int64_t>(1, std::min(most, n / std::max<int64_t>(1, grain)));
    if (chunks > threads_) chunks -= chunks % threads_;
    auto chunk = [&](int64_t i, int worker) { body(i * n / chunks, (i + 1) * n / chunks, worker); };
    each(chunks, chunk);
  }

  // The same for rows of `cost` elements; less than about two microseconds of work is not handed over.
  template <class F>
  void over_rows(int64_t rows, int64_t cost, F body) {
    constexpr int64_t kElements = 16384;
    over(rows, kElements / std::max<int64_t>(1, cost) + 1, [&](int64_t begin, int64_t end, int) { body(begin, end); });
  }

 private:
  struct alignas(64) Claim {
    std::atomic<uint64_t> range{0};  // end (32 bits) | next (32): one fetch_add claims a chunk, and tells whether there was one
    const Reads* asked = nullptr;    // the worker's own: of which table it asked for
    int64_t asked_bytes = 0;         // so much already
  };

  struct Job {
    JobFn fn;
    void* context;
  };

  void worker(int index);
  bool wait_for_work(int index, uint32_t epoch, uint32_t* phase);
  bool work(int index, Turns* turns = nullptr);
  void pass_turn(int64_t n);
  void wait_done(int64_t n);
  void pause(int index);  // a short one, of a worker that waits
  bool job_waits() const { return posted_.load(std::memory_order_acquire) != ended_.load(std::memory_order_relaxed) && !led_.load(std::memory_order_relaxed); }
  bool lead(int index, uint32_t limit);
  int32_t threads_of_step(bool few_rows);
  void rouse();  // sleeping workers look for work

  const int threads_;
  int64_t phases_ = 0;
  int leader_ = 0;  // the worker that runs phases now; of use to that one only
  Job jobs_[kJobs] = {};
  int32_t level_;      // threads of a step of few rows; this and the next lines are the leader's, times in microseconds
  int crowded_ = 0;    // counts with too many lost processors, one after the other
  int64_t fewer_us_;   // how long there will be fewer threads the next time
  int64_t again_at_ = 0, since_ = 0, switches_ = 0;  // when to try more; the begin of what is counted, and the count then
  ChunkFn fn_ = nullptr;
  void* context_ = nullptr;
  std::vector<Claim> claims_;  // of each worker
  std::deque<std::vector<Reads>> kept_;
  std::atomic<const Reads*> ahead_{nullptr};
  alignas(64) std::atomic<uint32_t> phase_{0};
  alignas(64) std::atomic<int64_t> done_{0};
  alignas(64) std::atomic<uint32_t> posted_{0};  // jobs so far, and
  std::atomic<uint32_t> ended_{0};               // how many of them have ended
  std::atomic<bool> led_{false};                 // somebody leads a job
  alignas(64) std::atomic<uint32_t> epoch_{0};   // futex word
  alignas(64) std::atomic<int32_t> active_;  // threads of this step; futex word of the others, which sleep
  std::atomic<int32_t> watchers_{0};         // threads that sleep until a job ends
  alignas(64) std::atomic<int32_t> sleepers_{0};
  std::atomic<bool> stop_{false};
  std::atomic<bool> parked_{false};
  std::vector<std::thread> workers_;
  std::unique_ptr<Turns> turns_;
};

}  // namespace llmx
