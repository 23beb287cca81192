#define LLMX_LEVEL 1
#include "linear_impl.h"

namespace llmx {

extern const LinearKernels linear_kernels_avx2;
const LinearKernels linear_kernels_avx2 = {isa_avx2::quantize, isa_avx2::largest, isa_avx2::round_bf16, isa_avx2::gemm};

}  // namespace llmx
