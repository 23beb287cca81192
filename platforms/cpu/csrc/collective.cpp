#include "collective.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "pause.h"

namespace llmx {
namespace {

constexpr int64_t kSlotBytes = 1 << 20;  // of one rank and turn; longer arrays take several turns
constexpr int64_t kHeaderBytes = 8192;
constexpr int kSpins = 2048, kYields = 64;  // then sleep: the other rank may have no processor
constexpr const char* kLost = "a rank of this engine is gone";

void sleep_on(std::atomic<uint32_t>* word, uint32_t seen) {
  const timespec most{0, 100'000'000};  // then look whether a rank is lost
  syscall(SYS_futex, word, FUTEX_WAIT, seen, &most, nullptr, 0);
}

void wake_all(std::atomic<uint32_t>* word) { syscall(SYS_futex, word, FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0); }

// body(begin, end) over [0, n), by the pool's threads where there is one.
template <class F>
void over(Pool* pool, int64_t n, int64_t grain, F body) {
  if (!pool) return body(int64_t{0}, n);
  pool->over(n, grain, [&](int64_t begin, int64_t end, int) { body(begin, end); });
}

}  // namespace

int64_t Communicator::memory_bytes(int size) { return kHeaderBytes + 2 * size * kSlotBytes; }

Communicator::Communicator(int fd, int rank, int size) : rank_(rank), size_(size) {
  static_assert(sizeof(Header) <= kHeaderBytes, "the header has its place");
  void* memory = mmap(nullptr, static_cast<size_t>(memory_bytes(size)), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory != MAP_FAILED) memory_ = static_cast<uint8_t*>(memory);
}

Communicator::~Communicator() {
  if (memory_) munmap(memory_, static_cast<size_t>(memory_bytes(size_)));
}

uint8_t* Communicator::slot(int rank) const { return memory_ + kHeaderBytes + ((turn_ & 1) * size_ + rank) * kSlotBytes; }

bool Communicator::wait_for(Line& line) {
  for (int tries = 0;; ++tries) {
    const uint32_t seen = line.arrived.load(std::memory_order_acquire);
    if (static_cast<int32_t>(seen - turn_) >= 0) return true;
    if (tries < kSpins) {
      pause_cpu();
      continue;
    }
    if (header().lost.load(std::memory_order_relaxed)) return false;
    if (tries < kSpins + kYields) {
      sched_yield();
      continue;
    }
    line.sleepers.fetch_add(1);
    if (line.arrived.load() == seen) sleep_on(&line.arrived, seen);
    line.sleepers.fetch_sub(1);
  }
}

// This rank has written its slot of the turn; true when all have.
bool Communicator::meet() {
  Line& mine = header().lines[rank_];
  mine.arrived.store(turn_);
  if (mine.sleepers.load()) wake_all(&mine.arrived);
  for (int r = 0; r < size_; ++r) {
    if (r != rank_ && !wait_for(header().lines[r])) return false;
  }
  return !header().lost.load(std::memory_order_relaxed);
}

const char* Communicator::all_reduce(const float* x, float* out, int64_t n, Pool* pool) {
  constexpr int64_t most = kSlotBytes / 4;
  for (int64_t first = 0; first < n; first += most) {
    const int64_t count = std::min(most, n - first);
    ++turn_;
    float* own = reinterpret_cast<float*>(slot(rank_));
    over(pool, count, 32768, [&](int64_t begin, int64_t end) { std::memcpy(own + begin, x + first + begin, static_cast<size_t>(end - begin) * 4); });
    if (!meet()) return kLost;
    over(pool, count, 16384, [&](int64_t begin, int64_t end) {
      const float* zero = reinterpret_cast<const float*>(slot(0));
      std::copy(zero + begin, zero + end, out + first + begin);
      for (int r = 1; r < size_; ++r) {
        const float* other = reinterpret_cast<const float*>(slot(r));
        for (int64_t i = begin; i < end; ++i) out[first + i] += other[i];
      }
    });
  }
  return nullptr;
}

const char* Communicator::all_gather(const uint8_t* x, uint8_t* out, int64_t rows, int64_t row_bytes, Pool* pool) {
  const int64_t total = rows * row_bytes;
  for (int64_t first = 0; first < total; first += kSlotBytes) {
    const int64_t count = std::min(kSlotBytes, total - first);
    ++turn_;
    uint8_t* own = slot(rank_);
    over(pool, count, 131072, [&](int64_t begin, int64_t end) { std::memcpy(own + begin, x + first + begin, static_cast<size_t>(end - begin)); });
    if (!meet()) return kLost;
    for (int r = 0; r < size_; ++r) {
      const uint8_t* from = slot(r);
      over(pool, count, 65536, [&](int64_t begin, int64_t end) {
        for (int64_t at = begin; at < end;) {  // a run inside one row
          const int64_t row = (first + at) / row_bytes, column = (first + at) % row_bytes, length = std::min(end - at, row_bytes - column);
          std::memcpy(out + (row * size_ + r) * row_bytes + column, from + at, static_cast<size_t>(length));
          at += length;
        }
      });
    }
  }
  return nullptr;
}

const char* Communicator::broadcast(uint8_t* data, int64_t bytes, int root) {
  for (int64_t first = 0; first < bytes; first += kSlotBytes) {
    const size_t count = static_cast<size_t>(std::min(kSlotBytes, bytes - first));
    ++turn_;
    if (rank_ == root) std::memcpy(slot(rank_), data + first, count);
    if (!meet()) return kLost;
    if (rank_ != root) std::memcpy(data + first, slot(root), count);
  }
  return nullptr;
}

void Communicator::abort() {
  header().lost.store(1);
  for (int r = 0; r < size_; ++r) wake_all(&header().lines[r].arrived);
}

}  // namespace llmx

#define LLMX_API extern "C" __attribute__((visibility("default")))
using llmx::Communicator;

// Null when the memory cannot be mapped. Calls give null, or what is wrong.
LLMX_API int64_t llmx_comm_bytes(int size) { return Communicator::memory_bytes(size); }
LLMX_API Communicator* llmx_comm_new(int fd, int rank, int size) {
  auto* made = new Communicator(fd, rank, size);
  if (made->mapped()) return made;
  delete made;
  return nullptr;
}
LLMX_API void llmx_comm_free(Communicator* one) { delete one; }
LLMX_API void llmx_comm_abort(Communicator* one) { one->abort(); }
LLMX_API const char* llmx_comm_all_reduce(Communicator* one, const float* x, float* out, int64_t n) { return one->all_reduce(x, out, n, nullptr); }
LLMX_API const char* llmx_comm_all_gather(Communicator* one, const uint8_t* x, uint8_t* out, int64_t rows, int64_t row_bytes) {
  return one->all_gather(x, out, rows, row_bytes, nullptr);
}
LLMX_API const char* llmx_comm_broadcast(Communicator* one, uint8_t* data, int64_t bytes, int root) { return one->broadcast(data, bytes, root); }
