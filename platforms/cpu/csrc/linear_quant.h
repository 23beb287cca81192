// What the packed form of each quantised type is made of: constants that packing and all kernels share. Layouts: linear.h.
#pragma once
#include "linear.h"

namespace llmx {

struct QuantForm {
  int low, high;   // bits of a code in the tile's byte lines (2, 4, 8) and in the bit lines after them (0, 1, 2)
  bool minimum;    // w = d * code + m; otherwise d * (code - 2^zero_shift)
  int zero_shift;  // of types without a minimum
  bool wide;       // groups of 256 k with integer scales; otherwise of two 32-k blocks with f16 scales
  int subs;        // scales per 32-k block
  constexpr int tile() const { return (low + high) * 64; }
  constexpr int blocks() const { return wide ? 8 : 2; }  // per group
  constexpr int parts() const { return minimum ? 2 : 1; }
  constexpr int scales() const { return wide ? (32 * parts() + 128 * subs * parts() + 63) / 64 * 64 : 64 * parts(); }
  constexpr int group() const { return scales() + blocks() * tile(); }
  // Offset in a group of the int8 scales of one part of a block (part 1: minima, negated), 16 channels.
  constexpr int factors(int block, int sub, int part) const { return 32 * parts() + ((block * subs + sub) * parts() + part) * 16; }
  constexpr int tile_at(int block) const { return scales() + block * tile(); }
};

constexpr QuantForm quant_form(WeightType type) {
  switch (type) {
    case WeightType::q4_0:
      return {4, 0, false, 3, false, 1};
    case WeightType::q4_1:
      return {4, 0, true, 0, false, 1};
    case WeightType::q5_0:
      return {4, 1, false, 4, false, 1};
    case WeightType::q5_1:
      return {4, 1, true, 0, false, 1};
    case WeightType::q2_k:
      return {2, 0, true, 0, true, 2};
    case WeightType::q3_k:
      return {2, 1, false, 2, true, 2};
    case WeightType::q4_k:
      return {4, 0, true, 0, true, 1};
    case WeightType::q5_k:
      return {4, 1, true, 0, true, 1};
    case WeightType::q6_k:
      return {4, 2, false, 5, true, 2};
    default:  // q8_0
      return {8, 0, false, 7, false, 1};
  }
}

}  // namespace llmx
