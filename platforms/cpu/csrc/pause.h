// A pause of a waiting loop: the processor's other thread gets its units, and the loop uses less power.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace llmx {

inline void pause_cpu() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

}  // namespace llmx
