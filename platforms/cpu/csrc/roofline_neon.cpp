#define LLMX_LEVEL 3
#include "roofline_impl.h"

namespace llmx {

extern const PeakFn peak_loop_neon;
const PeakFn peak_loop_neon = isa_neon::peak;

}  // namespace llmx
