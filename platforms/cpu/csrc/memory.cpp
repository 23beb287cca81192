// Pages and Arena: anonymous memory in huge pages where the system gives them.
#include <sys/mman.h>

#include <new>

#include "tape.h"

namespace llmx {
namespace {

constexpr size_t kHuge = size_t{2} << 20;
constexpr size_t kChunk = size_t{64} << 20;

size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

}  // namespace

Pages::Pages(size_t bytes) : size_(round_up(bytes ? bytes : 1, 64)) {
  mapped_ = round_up(size_, kHuge) + kHuge;
  mapping_ = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping_ == MAP_FAILED) throw std::bad_alloc();
  data_ = reinterpret_cast<uint8_t*>(round_up(reinterpret_cast<uintptr_t>(mapping_), kHuge));
  if (size_ >= kHuge) madvise(data_, round_up(size_, kHuge), MADV_HUGEPAGE);
}

Pages::~Pages() { munmap(mapping_, mapped_); }

uint8_t* Arena::take(size_t bytes) {
  bytes = round_up(bytes ? bytes : 1, 64);
  if (chunks_.empty() || used_ + bytes > chunks_.back()->size()) {
    chunks_.push_back(std::make_unique<Pages>(bytes > kChunk ? bytes : kChunk));
    used_ = 0;
  }
  uint8_t* start = chunks_.back()->data() + used_;
  used_ += bytes;
  total_ += bytes;
  return start;
}

}  // namespace llmx
