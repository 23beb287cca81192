#define LLMX_LEVEL 0
#include "rowwise_impl.h"

namespace llmx {

extern const RowKernels row_kernels_portable;
const RowKernels row_kernels_portable = isa_portable::kRowKernels;

}  // namespace llmx
