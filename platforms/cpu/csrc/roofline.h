// The machine's limits, measured: bytes per second from memory, and operations per second from registers alone, with the
// instructions that the kernels of a level use. What a kernel reaches of them says how much there is still to win.
#pragma once
#include <cstdint>

#include "isa.h"

namespace llmx {

enum class PeakKind : int { f32 = 0, bf16 = 1, int8 = 2 };

// Runs `rounds` rounds of independent chains of multiply-adds and returns the operations done (a multiply-add is two). `sink`
// gets a value that depends on all of them.
using PeakFn = int64_t (*)(PeakKind kind, int64_t rounds, float* sink);

PeakFn peak_loop(Isa isa);

// Operations per second of processor time, summed over threads that run at once; the best of some 20 ms spans.
double peak_ops(Isa isa, PeakKind kind, int threads);
// Bytes per second of processor time that threads at once read from `bytes` of memory, summed; the best pass.
double read_rate(int threads, int64_t bytes);

}  // namespace llmx
