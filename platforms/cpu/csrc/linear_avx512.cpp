#define LLMX_LEVEL 2
#include "linear_impl.h"

namespace llmx {

extern const LinearKernels linear_kernels_avx512;
const LinearKernels linear_kernels_avx512 = {isa_avx512::quantize, isa_avx512::largest, isa_avx512::round_bf16, isa_avx512::gemm};

}  // namespace llmx
