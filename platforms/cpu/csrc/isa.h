// ISA levels. One is chosen per process, before anything is packed; every kernel family is compiled once per level.
//
// A kernel family `foo` lives in foo_impl.h, written against simd.h, and is compiled by foo_portable.cpp, foo_avx2.cpp and
// foo_avx512.cpp, each in its own namespace, with its own flags. No std:: templates in those files: a COMDAT compiled with
// AVX-512 could be linked into the portable path.
#pragma once

namespace llmx {

enum class Isa : int {
  portable = 0,  // the compiler's baseline for the machine (x86-64: SSE2; aarch64: NEON)
  avx2 = 1,      // AVX2, FMA, F16C
  avx512 = 2,    // AVX-512 F BW VL DQ VNNI BF16
};

Isa isa_best();                    // the best level this CPU and OS can run
const char* isa_name(Isa isa);     // "portable", "avx2", "avx512"
bool isa_parse(const char* name, Isa* out);

}  // namespace llmx
