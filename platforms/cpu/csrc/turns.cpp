#include "turns.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

namespace llmx {
namespace {

constexpr int64_t kLookUs = 20'000;        // how often who waits looks around
constexpr int64_t kPatienceUs = 1'000'000;  // without progress: then it is passed over
constexpr int64_t kKeptUs = 50'000;         // that an engine may be behind others when it comes back from having had nothing to do

int64_t now_us() {
  return std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct flock byte_lock(int seat) {
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = seat;
  lock.l_len = 1;
  return lock;
}

}  // namespace

Turns::Turns(const char* file, int budget, int threads, int hold_us)
    : budget_(std::max(1, budget)), threads_(std::min(std::max(1, threads), budget_)), hold_us_(hold_us) {
  static_assert(std::atomic<uint64_t>::is_always_lock_free, "the word is shared by processes");
  fd_ = open(file, O_RDWR | O_CLOEXEC);
  struct stat about {};
  if (fd_ < 0 || fstat(fd_, &about)) return;
  if (about.st_size < static_cast<off_t>(sizeof(Shared)) && ftruncate(fd_, sizeof(Shared))) return;
  void* memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
  if (memory == MAP_FAILED) return;
  shared_ = static_cast<Shared*>(memory);
  if (sit()) return;
  munmap(shared_, sizeof(Shared));
  shared_ = nullptr;
}

Turns::~Turns() {
  if (shared_) {
    change(mine_ | mine_ << 32, 0);
    munmap(shared_, sizeof(Shared));
  }
  if (fd_ >= 0) close(fd_);
}

// Takes the first seat that nobody has. What one before left there goes.
bool Turns::sit() {
  for (seat_ = 0; seat_ < kMost; ++seat_) {
    struct flock lock = byte_lock(seat_);
    if (fcntl(fd_, F_OFD_SETLK, &lock)) continue;
    mine_ = uint64_t{1} << seat_;
    change(mine_ | mine_ << 32, 0);
    shared_->seats[seat_].threads.store(threads_);
    shared_->seats[seat_].used_us.store(0);
    return true;
  }
  return false;
}

bool Turns::gone(int seat) const {
  struct flock lock = byte_lock(seat);
  return !fcntl(fd_, F_OFD_GETLK, &lock) && lock.l_type == F_UNLCK;
}

// Whether a turn ends in this state: it was lost, or somebody waits and it was long enough.
bool Turns::over(uint64_t seen) const {
  if (!(seen & mine_)) return true;
  const int next = least(static_cast<uint32_t>(seen >> 32));
  if (next < 0) return false;
  const Seat* seats = shared_->seats;
  return seats[seat_].used_us.load(std::memory_order_relaxed) + now_us() - since_us_ - seats[next].used_us.load(std::memory_order_relaxed) >= hold_us_;
}

// Which of the seats (bits) has used least; -1: there are none.
int Turns::least(uint32_t seats) const {
  int found = -1;
  for (; seats; seats &= seats - 1) {
    const int i = __builtin_ctz(seats);
    const auto used = [&](int seat) { return shared_->seats[seat].used_us.load(std::memory_order_relaxed); };
    if (found < 0 || used(i) < used(found)) found = i;
  }
  return found;
}

// The word with turns given to those who wait, in their order, as far as threads reach. One alone gets a turn in any case.
uint64_t Turns::served(uint64_t word) const {
  int used = 0;
  for (int i = 0; i < kMost; ++i) {
    if (word >> i & 1) used += shared_->seats[i].threads.load(std::memory_order_relaxed);
  }
  while (word >> 32) {
    const int first = least(static_cast<uint32_t>(word >> 32));
    const int threads = shared_->seats[first].threads.load(std::memory_order_relaxed);
    if ((word & 0xffffffffu) && used + threads > budget_) break;
    used += threads;
    word = (word & ~(uint64_t{1} << (32 + first))) | uint64_t{1} << first;
  }
  return word;
}

uint64_t Turns::change(uint64_t clear, uint64_t set) {
  uint64_t seen = shared_->word.load(), wanted, next;
  do {
    wanted = (seen & ~clear) | set;
    next = served(wanted);
  } while (!shared_->word.compare_exchange_weak(seen, next));
  for (int i = 0; i < kMost; ++i) {
    if (i == seat_ || !((next & ~wanted) >> i & 1)) continue;
    shared_->seats[i].called.fetch_add(1);
    syscall(SYS_futex, &shared_->seats[i].called, FUTEX_WAKE, 1, nullptr, nullptr, 0);
  }
  return next;
}

// Passes over those who hold it up: processes that are gone, and holders without progress for too long.
void Turns::look_around(Seen* seen) {
  const uint64_t word = shared_->word.load();
  uint64_t clear = 0;
  for (int i = 0; i < kMost; ++i) {
    const uint64_t holds = uint64_t{1} << i, both = holds | holds << 32;
    if (i == seat_ || !(word & both)) continue;
    const uint32_t beat = shared_->seats[i].beat.load(std::memory_order_relaxed);
    if (gone(i)) {
      clear |= both;
    } else if (!(word & holds) || beat != seen[i].beat) {
      seen[i] = {beat, now_us()};
    } else if (now_us() - seen[i].at_us > kPatienceUs) {
      clear |= holds;
    }
  }
  if (clear) change(clear, 0);
}

// A turn ends.
void Turns::account() {
  std::atomic<int64_t>& used = shared_->seats[seat_].used_us;
  used.store(used.load(std::memory_order_relaxed) + now_us() - since_us_, std::memory_order_relaxed);
  const uint64_t word = shared_->word.load();
  const int64_t now = shared_->seats[least(static_cast<uint32_t>(word | word >> 32 | mine_))].used_us.load(std::memory_order_relaxed);
  for (int64_t before = shared_->least_us.load(); before < now && !shared_->least_us.compare_exchange_weak(before, now);) continue;
}

// clear: bits of the word that go when this engine gets in line.
void Turns::wait_in_line(uint64_t clear) {
  Seat& seat = shared_->seats[seat_];
  if (change(clear, mine_ << 32) & mine_) {
    since_us_ = now_us();
    return;
  }
  const int64_t start = now_us();
  waiting_.store(true, std::memory_order_relaxed);
  Seen seen[kMost];
  for (int i = 0; i < kMost; ++i) seen[i] = {shared_->seats[i].beat.load(std::memory_order_relaxed), start};
  const timespec most{0, kLookUs * 1000};
  for (int64_t looked = start;;) {
    const uint32_t called = seat.called.load();
    const uint64_t word = shared_->word.load();
    if (word & mine_) break;
    if (!(word & mine_ << 32)) {  // this process was stopped for so long that it was passed over
      change(0, mine_ << 32);
      continue;
    }
    syscall(SYS_futex, &seat.called, FUTEX_WAIT, called, &most, nullptr, 0);
    if (now_us() - looked >= kLookUs) look_around(seen), looked = now_us();
  }
  waiting_.store(false, std::memory_order_relaxed);
  since_us_ = now_us();
  ++waits_;
  waited_us_ += since_us_ - start;
}

void Turns::take() {
  if (depth_++) return;
  std::atomic<int64_t>& used = shared_->seats[seat_].used_us;
  used.store(std::max(used.load(std::memory_order_relaxed), shared_->least_us.load(std::memory_order_relaxed) - kKeptUs), std::memory_order_relaxed);
  uint64_t nobody = 0;
  if (shared_->word.compare_exchange_strong(nobody, mine_)) {
    since_us_ = now_us();
  } else {
    wait_in_line(0);
  }
}

void Turns::give() {
  if (--depth_) return;
  account();
  uint64_t alone = mine_;
  if (!shared_->word.compare_exchange_strong(alone, 0)) change(mine_, 0);
}

void Turns::pass() {
  account();
  wait_in_line(mine_);
}

}  // namespace llmx
