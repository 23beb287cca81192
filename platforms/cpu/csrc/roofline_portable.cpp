#define LLMX_LEVEL 0
#include "roofline_impl.h"

namespace llmx {

extern const PeakFn peak_loop_portable;
const PeakFn peak_loop_portable = isa_portable::peak;

}  // namespace llmx
