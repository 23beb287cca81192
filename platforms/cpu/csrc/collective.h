// Collectives of the ranks of one host, through a piece of memory that they share. Every rank makes the same calls in the same order.
// A turn: each rank writes what it has into its own slot, all meet, each reads the others' slots. Slots alternate between two places, so
// that a turn has one meeting: who writes turn k + 2 has met all others in k + 1, and they had read turn k before that.
#pragma once
#include <atomic>
#include <cstdint>

#include "pool.h"

namespace llmx {

class Communicator {
 public:
  static int64_t memory_bytes(int size);
  // fd: of a memory file of memory_bytes(size), zero-filled when the first rank opens it.
  Communicator(int fd, int rank, int size);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  bool mapped() const { return memory_ != nullptr; }
  int rank() const { return rank_; }
  int size() const { return size_; }
  // Null, or what is wrong: a rank is lost. pool: null, or threads that may help.
  const char* all_reduce(const float* x, float* out, int64_t n, Pool* pool);  // rank 0's, plus rank 1's, and so on
  const char* all_gather(const uint8_t* x, uint8_t* out, int64_t rows, int64_t row_bytes, Pool* pool);  // out: [rows, size * row_bytes]
  const char* broadcast(uint8_t* data, int64_t bytes, int root);
  void abort();  // from any thread

 private:
  struct alignas(64) Line {
    std::atomic<uint32_t> arrived;   // turns that the rank has written; a futex word
    std::atomic<uint32_t> sleepers;  // ranks that sleep until it changes
  };
  struct Header {
    alignas(64) std::atomic<uint32_t> lost;
    Line lines[64];
  };

  Header& header() const { return *reinterpret_cast<Header*>(memory_); }
  uint8_t* slot(int rank) const;
  bool meet();
  bool wait_for(Line& line);

  const int rank_, size_;
  uint32_t turn_ = 0;
  uint8_t* memory_ = nullptr;
};

}  // namespace llmx
