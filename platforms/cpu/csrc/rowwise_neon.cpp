#define LLMX_LEVEL 3
#include "rowwise_impl.h"

namespace llmx {

extern const RowKernels row_kernels_neon;
const RowKernels row_kernels_neon = isa_neon::kRowKernels;

}  // namespace llmx
