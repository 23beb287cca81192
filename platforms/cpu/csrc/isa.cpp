// What this CPU and OS can run: on x86-64 cpuid for the instructions and xgetbv for the registers that the OS saves; on aarch64
// the kernel's word.
#include "isa.h"

#include <cstdint>

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace llmx {

#if defined(__x86_64__)
namespace {

uint64_t saved_state() {
  uint32_t low = 0, high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (static_cast<uint64_t>(high) << 32) | low;
}

bool bits(unsigned value, unsigned wanted) { return (value & wanted) == wanted; }

}  // namespace

Isa isa_best() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid(1, &a, &b, &c, &d)) return Isa::portable;
  const bool osxsave = bits(c, bit_OSXSAVE), avx = bits(c, bit_AVX), fma = bits(c, bit_FMA), f16c = bits(c, bit_F16C);
  if (!osxsave || !avx || !fma || !f16c) return Isa::portable;
  const uint64_t state = saved_state();
  if ((state & 0x6) != 0x6) return Isa::portable;  // XMM, YMM
  unsigned b7 = 0, c7 = 0;
  if (!__get_cpuid_count(7, 0, &a, &b7, &c7, &d) || !bits(b7, bit_AVX2)) return Isa::portable;
  const bool registers = (state & 0xe0) == 0xe0;  // opmask, ZMM
  const bool base = bits(b7, bit_AVX512F | bit_AVX512BW | bit_AVX512VL | bit_AVX512DQ) && bits(c7, bit_AVX512VNNI);
  unsigned a71 = 0;
  const bool bf16 = __get_cpuid_count(7, 1, &a71, &b, &c, &d) && bits(a71, 1u << 5);
  return registers && base && bf16 ? Isa::avx512 : Isa::avx2;
}
#elif defined(__aarch64__)
Isa isa_best() { return getauxval(AT_HWCAP) & HWCAP_ASIMDDP ? Isa::neon : Isa::portable; }
#else
Isa isa_best() { return Isa::portable; }
#endif

}  // namespace llmx
