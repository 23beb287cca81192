#define LLMX_LEVEL 3
#include "lora_impl.h"

namespace llmx {

extern const LoraKernels lora_kernels_neon;
const LoraKernels lora_kernels_neon = isa_neon::kLoraKernels;

}  // namespace llmx
