// Pages of int8: K [D / 2][16][2] codes, then f32 [16] scales of the keys; V [8][Dv][2] codes, then f32 [16] scales. One scale per
// (token, head): value = code * scale. Operands are int16 with one scale per row (queries; probability x V scale of a chunk), so
// the sums are integers, exact in any order; 16383 * 127 * 1024 and 32767 * 127 * 256 fit into 31 bits.
#pragma once
#include "attention.h"
#include "simd.h"

namespace llmx {
namespace LLMX_NS {

constexpr int kScaleBytes = kBlockTokens * 4;
constexpr float kQueryLargest = 16383.0f, kWeightLargest = 32767.0f;

#if LLMX_LEVEL == 2
struct I16x32 {  // sixteen pairs of int16
  __m512i v;
};
struct I32x16 {
  __m512i v;
};
LLMX_INLINE I32x16 zero_ints() { return {_mm512_setzero_si512()}; }
LLMX_INLINE F16 to_floats(I32x16 a) { return {_mm512_cvtepi32_ps(a.v)}; }
LLMX_INLINE I16x32 widen_codes(const uint8_t* p) { return {_mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))}; }
LLMX_INLINE I16x32 set1_ints(const float* p) { return {_mm512_set1_epi32(static_cast<int32_t>(float_to_bits(*p)))}; }
LLMX_INLINE I32x16 dot_ints(I32x16 acc, I16x32 a, I16x32 b) { return {_mm512_dpwssd_epi32(acc.v, a.v, b.v)}; }
// Sixteen floats of integral size below 2^15, to int16.
LLMX_INLINE void store_ints(float* to, F16 a) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtepi32_epi16(_mm512_cvtps_epi32(a.v))); }
#elif LLMX_LEVEL == 1
struct I16x32 {
  __m256i lo, hi;
};
struct I32x16 {
  __m256i lo, hi;
};
LLMX_INLINE I32x16 zero_ints() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
LLMX_INLINE F16 to_floats(I32x16 a) { return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)}; }
LLMX_INLINE I16x32 widen_codes(const uint8_t* p) {
  return {_mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))), _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 16)))};
}
LLMX_INLINE I16x32 set1_ints(const float* p) {
  const __m256i v = _mm256_castps_si256(_mm256_broadcast_ss(p));
  return {v, v};
}
LLMX_INLINE I32x16 dot_ints(I32x16 acc, I16x32 a, I16x32 b) {
  return {_mm256_add_epi32(acc.lo, _mm256_madd_epi16(a.lo, b.lo)), _mm256_add_epi32(acc.hi, _mm256_madd_epi16(a.hi, b.hi))};
}
LLMX_INLINE void store_ints(float* to, F16 a) {
  const __m256i packed = _mm256_packs_epi32(_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_permute4x64_epi64(packed, 0xd8));
}
#elif LLMX_LEVEL == 3
struct I16x32 {  // the first of each pair, the second of each pair
  int16x8_t first[2], second[2];
};
struct I32x16 {
  int32x4_t v[4];
};
LLMX_INLINE I32x16 zero_ints() { return {{vdupq_n_s32(0), vdupq_n_s32(0), vdupq_n_s32(0), vdupq_n_s32(0)}}; }
LLMX_INLINE F16 to_floats(I32x16 a) { return {{vcvtq_f32_s32(a.v[0]), vcvtq_f32_s32(a.v[1]), vcvtq_f32_s32(a.v[2]), vcvtq_f32_s32(a.v[3])}}; }
LLMX_INLINE I16x32 widen_codes(const uint8_t* p) {
  const int8x16x2_t pairs = vld2q_s8(reinterpret_cast<const int8_t*>(p));
  return {{vmovl_s8(vget_low_s8(pairs.val[0])), vmovl_high_s8(pairs.val[0])}, {vmovl_s8(vget_low_s8(pairs.val[1])), vmovl_high_s8(pairs.val[1])}};
}
LLMX_INLINE I16x32 set1_ints(const float* p) {
  int16_t pair[2];
  memcpy(pair, p, 4);
  const int16x8_t first = vdupq_n_s16(pair[0]), second = vdupq_n_s16(pair[1]);
  return {{first, first}, {second, second}};
}
LLMX_INLINE I32x16 dot_ints(I32x16 acc, I16x32 a, I16x32 b) {
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    int32x4_t &low = acc.v[2 * i], &high = acc.v[2 * i + 1];
    low = vmlal_s16(low, vget_low_s16(a.first[i]), vget_low_s16(b.first[i]));
    low = vmlal_s16(low, vget_low_s16(a.second[i]), vget_low_s16(b.second[i]));
    high = vmlal_high_s16(high, a.first[i], b.first[i]);
    high = vmlal_high_s16(high, a.second[i], b.second[i]);
  }
  return acc;
}
LLMX_INLINE void store_ints(float* to, F16 a) {
  int16_t* out = reinterpret_cast<int16_t*>(to);
  for (int i = 0; i < 4; ++i) vst1_s16(out + 4 * i, vqmovn_s32(vcvtnq_s32_f32(a.v[i])));
}
#else
struct I16x32 {  // the first of each pair, the second of each pair
  int32_t first[16], second[16];
};
struct I32x16 {
  int32_t v[16];
};
LLMX_INLINE I32x16 zero_ints() { return {{0}}; }
LLMX_INLINE F16 to_floats(const I32x16& a) {
  float tmp[16];
  for (int i = 0; i < 16; ++i) tmp[i] = static_cast<float>(a.v[i]);
  return load(tmp);
}
LLMX_INLINE I16x32 widen_codes(const uint8_t* p) {
  I16x32 r;
  for (int i = 0; i < 16; ++i) r.first[i] = static_cast<int8_t>(p[2 * i]), r.second[i] = static_cast<int8_t>(p[2 * i + 1]);
  return r;
}
LLMX_INLINE I16x32 set1_ints(const float* p) {
  int16_t pair[2];
  memcpy(pair, p, 4);
  I16x32 r;
  for (int i = 0; i < 16; ++i) r.first[i] = pair[0], r.second[i] = pair[1];
  return r;
}
LLMX_INLINE I32x16 dot_ints(I32x16 acc, const I16x32& a, const I16x32& b) {
  for (int i = 0; i < 16; ++i) acc.v[i] += a.first[i] * b.first[i] + a.second[i] * b.second[i];
  return acc;
}
LLMX_INLINE void store_ints(float* to, F16 a) {
  float tmp[16];
  int16_t out[16];
  store(tmp, round_even(a));
  for (int i = 0; i < 16; ++i) out[i] = static_cast<int16_t>(tmp[i] == tmp[i] ? tmp[i] : 0.0f);
  memcpy(to, out, 32);
}
#endif

// The largest magnitude of a row; NaN where an element is NaN.
LLMX_INLINE float largest_of(const float* x, int n) {
  F16 top = zero(), sum = zero();
  for (int i = 0; i < n; i += kLanes) {
    const F16 a = n - i < kLanes ? load_n(x + i, n - i) : load(x + i);
    top = max(abs(a), top);
    sum = add(sum, mul(a, zero()));
  }
  const float all = hmax(top);
  return mask_eq(sum, sum) == 0xffffu || !(all < __builtin_inff()) ? all : bits_to_float(0x7fc00000u);
}

struct Int8Page {
  static constexpr int kPerUnit = 2, kBytes = 1, kWords = 1;  // a word is a pair of int16
  static constexpr int kUnitBytes = 32, kExtraBytes = kScaleBytes, kParts = 1;
  using Unit = I16x32;
  using Sum = I32x16;
  LLMX_INLINE Unit load_unit(const uint8_t* p) { return widen_codes(p); }
  LLMX_INLINE Unit load_unit_n(const uint8_t* p, int n) {
    uint8_t tmp[kUnitBytes] = {0};
    memcpy(tmp, p, static_cast<size_t>(n) * 2);
    return widen_codes(tmp);
  }
  LLMX_INLINE Sum zero_sum() { return zero_ints(); }
  template <int>
  LLMX_INLINE Sum dot(const Sum& acc, const Unit& unit, const float* x) {
    return dot_ints(acc, unit, set1_ints(x));
  }
  LLMX_INLINE F16 score(const Sum& sum, const uint8_t* k_block, int units, float scale) {
    return mul(mul(to_floats(sum), load(reinterpret_cast<const float*>(k_block + units * kUnitBytes))), set1(scale));
  }
  LLMX_INLINE F16 value(const Sum& sum, float scale) { return mul(to_floats(sum), set1(scale)); }
  // Writes a query row as operands and returns its scale. Reads whole vectors; past n are zeros.
  LLMX_INLINE float store_operand(float* to, const float* from, int n) {
    const float largest = largest_of(from, n);
    const bool tiny = largest < 1e-30f;
    const F16 inverse = set1(tiny ? 0.0f : kQueryLargest / largest);
    for (int i = 0; i < n; i += kLanes) store_ints(to + i / 2, mul(load(from + i), inverse));
    return tiny ? 0.0f : largest / kQueryLargest;
  }
};

// One row of K or V as codes (room for whole groups of 32) and its scale. A NaN makes the scale NaN.
LLMX_INLINE float quantize_row(int8_t* to, const float* from, int n) {
  const float largest = largest_of(from, n);
  const bool tiny = largest < 1e-30f;
  const F16 inverse = set1(tiny ? 0.0f : 127.0f / largest);
  int32_t sums[2];
  for (int i = 0; i < n; i += 2 * kLanes) {
    const int left = n - i;
    const F16 a = left < kLanes ? load_n(from + i, left) : load(from + i);
    const F16 b = left < 2 * kLanes ? (left > kLanes ? load_n(from + i + kLanes, left - kLanes) : zero()) : load(from + i + kLanes);
    store_i8(to + i, mul(a, inverse), mul(b, inverse), sums);
  }
  return tiny ? 0.0f : largest / 127.0f;
}

}  // namespace LLMX_NS
}  // namespace llmx
