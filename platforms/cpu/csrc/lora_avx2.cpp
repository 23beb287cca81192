#define LLMX_LEVEL 1
#include "lora_impl.h"

namespace llmx {

extern const LoraKernels lora_kernels_avx2;
const LoraKernels lora_kernels_avx2 = isa_avx2::kLoraKernels;

}  // namespace llmx
