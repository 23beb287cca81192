#define LLMX_LEVEL 1
#include "roofline_impl.h"

namespace llmx {

extern const PeakFn peak_loop_avx2;
const PeakFn peak_loop_avx2 = isa_avx2::peak;

}  // namespace llmx
