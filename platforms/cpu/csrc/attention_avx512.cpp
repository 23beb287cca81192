#define LLMX_LEVEL 2
#include "attention_impl.h"

namespace llmx {

extern const AttnKernels attn_kernels_avx512;
const AttnKernels attn_kernels_avx512 = {LLMX_NS::kv_write, attn_plan, attn_prepare, LLMX_NS::attn_run, LLMX_NS::attn_merge, "attention.avx512"};

}  // namespace llmx
