#define LLMX_LEVEL 3
#include "linear_impl.h"

namespace llmx {

extern const LinearKernels linear_kernels_neon;
const LinearKernels linear_kernels_neon = {isa_neon::quantize, isa_neon::largest, isa_neon::round_bf16, isa_neon::gemm};

}  // namespace llmx
