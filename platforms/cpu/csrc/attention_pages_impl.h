// How a page's unit (sixteen keys or columns, one pair or one float each) meets one operand (of a query or of probabilities), for
// each element type; attention.h has the layout, attention_int8_impl.h the type int8.
#pragma once
#include "attention.h"
#include "attention_int8_impl.h"
#include "simd.h"

namespace llmx {
namespace LLMX_NS {

constexpr int kLineBytes = 64;  // what one prefetch brings

// What F32Page and Bf16Page share: sums of floats that need no scales.
struct FloatPage {
  static constexpr int kUnitBytes = 64, kExtraBytes = 0, kParts = 1;
  using Sum = F16;
  LLMX_INLINE Sum zero_sum() { return zero(); }
  LLMX_INLINE F16 score(Sum sum, const uint8_t*, int, float) { return sum; }
  LLMX_INLINE F16 value(Sum sum, float) { return sum; }
};

// kPerUnit: elements of the summed dimension in a unit. An operand is kWords floats per unit. kExtraBytes: after K or V of a head.
// A unit meets its operand in kParts steps, each for all rows, so that no more of it than a part needs a register.

struct F32Page : FloatPage {
  static constexpr int kPerUnit = 1, kWords = 1, kBytes = 4;
  struct Unit {
    F16 v;
  };
  LLMX_INLINE Unit load_unit(const uint8_t* p) { return {load(reinterpret_cast<const float*>(p))}; }
  LLMX_INLINE Unit load_unit_n(const uint8_t* p, int n) { return {load_n(reinterpret_cast<const float*>(p), n)}; }
  template <int>
  LLMX_INLINE F16 dot(F16 acc, const Unit& unit, const float* x) {
    return fma(unit.v, set1(*x), acc);
  }
  LLMX_INLINE float store_operand(float* to, const float* from, int n) {
    memcpy(to, from, static_cast<size_t>(n) * 4);
    return 1.0f;
  }
};

struct Bf16Page : FloatPage {
  static constexpr int kPerUnit = 2, kBytes = 2;
  LLMX_INLINE B32 load_n_pairs(const uint8_t* p, int n) {
    uint8_t tmp[kUnitBytes] = {0};
    memcpy(tmp, p, static_cast<size_t>(n) * 4);
    return load_pairs(tmp);
  }
#if LLMX_LEVEL == 2
  static constexpr int kWords = 1;  // a pair
  struct Unit {
    B32 v;
  };
  LLMX_INLINE B32 pairs_of(F16 first, F16 second) { return {reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(second.v, first.v))}; }
  LLMX_INLINE Unit load_unit(const uint8_t* p) { return {load_pairs(p)}; }
  LLMX_INLINE Unit load_unit_n(const uint8_t* p, int n) { return {load_n_pairs(p, n)}; }
  template <int>
  LLMX_INLINE F16 dot(F16 acc, const Unit& unit, const float* x) {
    return dot_pairs(acc, unit.v, set1_pair(float_to_bits(*x)));
  }
  LLMX_INLINE float store_operand(float* to, const float* from, int n) {  // reads and writes whole vectors
    for (int i = 0; i < n; i += 2 * kLanes) _mm512_storeu_si512(to + i / 2, pairs_of(load(from + i), load(from + i + kLanes)).v);
    return 1.0f;
  }
#else
  static constexpr int kWords = 2;  // two floats, both exactly representable in bf16
  static constexpr int kParts = 2;  // the first of each pair, the second
  struct Unit {
    B32 pairs;
  };
  LLMX_INLINE Unit load_unit(const uint8_t* p) { return {load_pairs(p)}; }
  LLMX_INLINE Unit load_unit_n(const uint8_t* p, int n) { return {load_n_pairs(p, n)}; }
  template <int Part>
  LLMX_INLINE F16 dot(F16 acc, const Unit& unit, const float* x) {
    return fma(Part == 0 ? pair_even(unit.pairs) : pair_odd(unit.pairs), set1(x[Part]), acc);
  }
  LLMX_INLINE float store_operand(float* to, const float* from, int n) {
    for (int i = 0; i < n; ++i) to[i] = bf16_to_float(float_to_bf16(from[i]));
    return 1.0f;
  }
#endif
};

// Bytes of K of one head in one block; V of one head; words from one query row to the next.
template <class Page>
LLMX_INLINE int64_t k_bytes(int head_dim) {
  return static_cast<int64_t>(head_dim) * kBlockTokens * Page::kBytes + Page::kExtraBytes;
}
template <class Page>
LLMX_INLINE int64_t v_bytes(int v_dim) {
  return static_cast<int64_t>(v_dim) * kBlockTokens * Page::kBytes + Page::kExtraBytes;
}
template <class Page>
LLMX_INLINE int query_words(int head_dim) {
  return (head_dim / Page::kPerUnit * Page::kWords + kLanes - 1) / kLanes * kLanes;
}

}  // namespace LLMX_NS
}  // namespace llmx
