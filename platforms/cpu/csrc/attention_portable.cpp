#define LLMX_LEVEL 0
#include "attention_impl.h"

namespace llmx {

extern const AttnKernels attn_kernels_portable;
const AttnKernels attn_kernels_portable = {LLMX_NS::kv_write, attn_plan, attn_prepare, LLMX_NS::attn_run, LLMX_NS::attn_merge, "attention.portable"};

}  // namespace llmx
