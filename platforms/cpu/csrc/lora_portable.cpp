#define LLMX_LEVEL 0
#include "lora_impl.h"

namespace llmx {

extern const LoraKernels lora_kernels_portable;
const LoraKernels lora_kernels_portable = isa_portable::kLoraKernels;

}  // namespace llmx
