#define LLMX_LEVEL 2
#include "lora_impl.h"

namespace llmx {

extern const LoraKernels lora_kernels_avx512;
const LoraKernels lora_kernels_avx512 = isa_avx512::kLoraKernels;

}  // namespace llmx
