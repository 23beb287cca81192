// The tables of the families that are written in this folder, by level.
#include "linear.h"
#include "lora.h"
#include "rowwise.h"

namespace llmx {

extern const LinearKernels linear_kernels_portable, linear_kernels_avx2, linear_kernels_avx512, linear_kernels_neon;
extern const LoraKernels lora_kernels_portable, lora_kernels_avx2, lora_kernels_avx512, lora_kernels_neon;
extern const RowKernels row_kernels_portable, row_kernels_avx2, row_kernels_avx512, row_kernels_neon;

const LinearKernels& linear_kernels(Isa isa) {
#if LLMX_X86
  if (isa == Isa::avx512) return linear_kernels_avx512;
  if (isa == Isa::avx2) return linear_kernels_avx2;
#elif LLMX_NEON
  if (isa == Isa::neon) return linear_kernels_neon;
#endif
  (void)isa;
  return linear_kernels_portable;
}

const RowKernels& row_kernels(Isa isa) {
#if LLMX_X86
  if (isa == Isa::avx512) return row_kernels_avx512;
  if (isa == Isa::avx2) return row_kernels_avx2;
#elif LLMX_NEON
  if (isa == Isa::neon) return row_kernels_neon;
#endif
  (void)isa;
  return row_kernels_portable;
}

const LoraKernels& lora_kernels(Isa isa) {
#if LLMX_X86
  if (isa == Isa::avx512) return lora_kernels_avx512;
  if (isa == Isa::avx2) return lora_kernels_avx2;
#elif LLMX_NEON
  if (isa == Isa::neon) return lora_kernels_neon;
#endif
  (void)isa;
  return lora_kernels_portable;
}

}  // namespace llmx
