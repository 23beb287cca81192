#define LLMX_LEVEL 3
#include "attention_impl.h"

namespace llmx {

extern const AttnKernels attn_kernels_neon;
const AttnKernels attn_kernels_neon = {LLMX_NS::kv_write, attn_plan, attn_prepare, LLMX_NS::attn_run, LLMX_NS::attn_merge, "attention.neon"};

}  // namespace llmx
