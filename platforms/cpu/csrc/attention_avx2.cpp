#define LLMX_LEVEL 1
#include "attention_impl.h"

namespace llmx {

extern const AttnKernels attn_kernels_avx2;
const AttnKernels attn_kernels_avx2 = {LLMX_NS::kv_write, attn_plan, attn_prepare, LLMX_NS::attn_run, LLMX_NS::attn_merge, "attention.avx2"};

}  // namespace llmx
