// What this CPU and OS can run: cpuid for the instructions, xgetbv for the registers that the OS saves.
#include "isa.h"

#include <cstdint>
#include <cstring>
#include <initializer_list>

#if defined(__x86_64__)
#include <cpuid.h>
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
#else
Isa isa_best() { return Isa::portable; }
#endif

const char* isa_name(Isa isa) {
  switch (isa) {
    case Isa::avx512:
      return "avx512";
    case Isa::avx2:
      return "avx2";
    default:
      return "portable";
  }
}

bool isa_parse(const char* name, Isa* out) {
  for (Isa isa : {Isa::portable, Isa::avx2, Isa::avx512}) {
    if (std::strcmp(name, isa_name(isa)) == 0) {
      *out = isa;
      return true;
    }
  }
  return false;
}

}  // namespace llmx
