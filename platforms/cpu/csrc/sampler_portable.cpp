#define LLMX_LEVEL 0
#include "sampler_impl.h"

namespace llmx {

extern const SampleKernels sample_kernels_portable;
const SampleKernels sample_kernels_portable = {LLMX_NS::sample_scratch_bytes, LLMX_NS::sample_rows, LLMX_NS::score_rows};

}  // namespace llmx
