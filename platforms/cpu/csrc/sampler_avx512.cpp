#define LLMX_LEVEL 2
#include "sampler_impl.h"

namespace llmx {

extern const SampleKernels sample_kernels_avx512;
const SampleKernels sample_kernels_avx512 = {LLMX_NS::sample_scratch_bytes, LLMX_NS::sample_rows, LLMX_NS::score_rows};

}  // namespace llmx
