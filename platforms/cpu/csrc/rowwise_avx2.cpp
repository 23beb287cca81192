#define LLMX_LEVEL 1
#include "rowwise_impl.h"

namespace llmx {

extern const RowKernels row_kernels_avx2;
const RowKernels row_kernels_avx2 = isa_avx2::kRowKernels;

}  // namespace llmx
