// ISA levels. One is chosen per process, before anything is packed; every kernel family is compiled once per level.
//
// A kernel family `foo` lives in foo_impl.h, written against simd.h, and is compiled by foo_portable.cpp and on
// x86-64 foo_avx2.cpp and foo_avx512.cpp, on aarch64 foo_neon.cpp, each in its own namespace, with its own flags. No std:: templates in those files: a COMDAT compiled with
// AVX-512 could be linked into the portable path.
#pragma once

namespace llmx {

// The levels of one architecture, each above those before it. ISA_NAMES of native.py has the same.
enum class Isa : int {
  portable = 0,  // the compiler's baseline for the machine (x86-64: SSE2; aarch64: NEON)
#if defined(__aarch64__)
  neon = 1,  // NEON with dot products (Armv8.2)
#else
  avx2 = 1,    // AVX2, FMA, F16C
  avx512 = 2,  // AVX-512 F BW VL DQ VNNI BF16
#endif
};

// Whether the level multiplies pairs of bf16.
constexpr bool has_pair_products(Isa isa) {
#if defined(__aarch64__)
  return (void)isa, false;
#else
  return isa == Isa::avx512;
#endif
}

Isa isa_best();  // the best level this CPU and OS can run

}  // namespace llmx
