// Turns: engines of several processes that share a number of threads. An engine computes while it holds a turn, and turns are held by no
// more engines than have that many threads together. The next is the one that has computed least, and one that holds a turn gives it up in
// the middle of a step when somebody waits who has computed less by a certain time: so engines that have enough to do get equal time, whatever
// their steps take. What an engine leaves while it has nothing to do is lost to it, but for a little.
//
// All state is one word in a file that the processes map: who holds a turn, and who waits. It changes by compare-and-swap, so a process that
// is killed or stopped anywhere leaves a valid one. Each has a lock in the file, which the kernel gives back when the process ends: who
// waits looks now and then whether those before it live, and passes over a process that is gone, or has shown no progress for a second.
// So a turn is a matter of speed alone: results may not depend on it.
#pragma once
#include <atomic>
#include <cstdint>

namespace llmx {

class Turns {
 public:
  // file: any that processes may write, empty at first. budget: threads of all together. threads: of this engine; more than the budget count
  // as all of it. hold_us: by how much who waits is behind when a turn ends. `ready` is false when the file cannot be used or kMost engines are there already.
  Turns(const char* file, int budget, int threads, int hold_us);
  ~Turns();
  Turns(const Turns&) = delete;
  Turns& operator=(const Turns&) = delete;
  bool ready() const { return shared_ != nullptr; }

  void take();  // waits for a turn; calls may nest
  void give();
  // Asked by the thread that leads, often: whether the turn is to be given up now, for somebody waits, or is lost.
  bool due() {
    if (!depth_) return false;
    shared_->seats[seat_].beat.store(++beat_, std::memory_order_relaxed);
    const uint64_t seen = shared_->word.load(std::memory_order_relaxed);
    return seen != mine_ && over(seen);
  }
  void pass();  // behind due(): gives the turn to who waits, and waits for the next
  bool waiting() const { return waiting_.load(std::memory_order_relaxed); }  // asked by other threads
  int64_t waits() const { return waits_; }
  int64_t waited_us() const { return waited_us_; }

  static constexpr int kMost = 32;  // engines

 private:
  struct alignas(64) Seat {
    std::atomic<uint32_t> called;  // futex word: changes when the engine gets its turn
    std::atomic<uint32_t> beat;    // progress
    std::atomic<int32_t> threads;
    std::atomic<int64_t> used_us;  // in its turns so far
  };
  struct Shared {  // zeros at first
    std::atomic<uint64_t> word;  // bit i: seat i holds a turn; bit 32 + i: it waits
    std::atomic<int64_t> least_us;  // that those who hold or wait have used; never less than before
    Seat seats[kMost];
  };
  struct Seen {  // what a waiting engine saw of another
    uint32_t beat;
    int64_t at_us;
  };

  bool sit();
  bool over(uint64_t seen) const;
  int least(uint32_t seats) const;
  uint64_t served(uint64_t word) const;
  uint64_t change(uint64_t clear, uint64_t set);
  void account();
  void wait_in_line(uint64_t clear);
  void look_around(Seen* seen);
  bool gone(int seat) const;

  Shared* shared_ = nullptr;
  const int budget_, threads_;
  const int64_t hold_us_;
  int fd_ = -1, seat_ = 0, depth_ = 0;
  uint64_t mine_ = 0;
  uint32_t beat_ = 0;
  std::atomic<bool> waiting_{false};
  int64_t since_us_ = 0, waits_ = 0, waited_us_ = 0;
};

}  // namespace llmx
