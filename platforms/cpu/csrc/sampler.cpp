// Which ISA level samples.
#include "sampler.h"

namespace llmx {

extern const SampleKernels sample_kernels_portable, sample_kernels_avx2, sample_kernels_avx512, sample_kernels_neon;

const SampleKernels& sample_kernels(Isa isa) {
#if LLMX_X86
  if (isa == Isa::avx512) return sample_kernels_avx512;
  if (isa == Isa::avx2) return sample_kernels_avx2;
#elif LLMX_NEON
  if (isa == Isa::neon) return sample_kernels_neon;
#endif
  (void)isa;
  return sample_kernels_portable;
}

}  // namespace llmx
