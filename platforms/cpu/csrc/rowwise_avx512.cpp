#define LLMX_LEVEL 2
#include "rowwise_impl.h"

namespace llmx {

extern const RowKernels row_kernels_avx512;
const RowKernels row_kernels_avx512 = isa_avx512::kRowKernels;

}  // namespace llmx
