#define LLMX_LEVEL 3
#include "sampler_impl.h"

namespace llmx {

extern const SampleKernels sample_kernels_neon;
const SampleKernels sample_kernels_neon = {LLMX_NS::sample_scratch_bytes, LLMX_NS::sample_rows, LLMX_NS::score_rows};

}  // namespace llmx
