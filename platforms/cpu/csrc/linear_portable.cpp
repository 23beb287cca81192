#define LLMX_LEVEL 0
#include "linear_impl.h"

namespace llmx {

extern const LinearKernels linear_kernels_portable;
const LinearKernels linear_kernels_portable = {isa_portable::quantize, isa_portable::largest, isa_portable::round_bf16, isa_portable::gemm};

}  // namespace llmx
