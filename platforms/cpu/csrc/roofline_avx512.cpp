#define LLMX_LEVEL 2
#include "roofline_impl.h"

namespace llmx {

extern const PeakFn peak_loop_avx512;
const PeakFn peak_loop_avx512 = isa_avx512::peak;

}  // namespace llmx
