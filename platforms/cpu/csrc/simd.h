// Sixteen float lanes, once per ISA level. A kernel family is written against this header and compiled by one TU per level:
//
//   foo_avx512.cpp:  #define LLMX_LEVEL 2
//                    #include "foo_impl.h"      // includes simd.h, opens namespace llmx::LLMX_NS
//
// LLMX_LEVEL 0 portable, 1 AVX2 + FMA + F16C, 2 AVX-512 F BW VL DQ VNNI BF16, 3 NEON with dot products (aarch64). Everything here is static and always inlined, so
// nothing compiled for a higher level can be linked into a lower one. Reductions have one fixed tree per level.
#pragma once
#include <cstdint>
#include <cstring>

#ifndef LLMX_LEVEL
#error "define LLMX_LEVEL before including simd.h"
#endif

#if LLMX_LEVEL == 3
#define LLMX_NS isa_neon
#elif LLMX_LEVEL == 2
#define LLMX_NS isa_avx512
#elif LLMX_LEVEL == 1
#define LLMX_NS isa_avx2
#else
#define LLMX_NS isa_portable
#endif

#if LLMX_LEVEL == 3
#include <arm_neon.h>
#elif LLMX_LEVEL > 0
#include <immintrin.h>
#endif
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#define LLMX_INLINE static inline __attribute__((always_inline))

namespace llmx {
namespace LLMX_NS {

constexpr int kLanes = 16;

LLMX_INLINE float bits_to_float(uint32_t bits) {
  float out;
  memcpy(&out, &bits, 4);
  return out;
}

LLMX_INLINE uint32_t float_to_bits(float value) {
  uint32_t out;
  memcpy(&out, &value, 4);
  return out;
}

LLMX_INLINE float bf16_to_float(uint16_t bits) { return bits_to_float(static_cast<uint32_t>(bits) << 16); }

// Round to nearest even; NaN stays a quiet NaN.
LLMX_INLINE uint16_t float_to_bf16(float value) {
  const uint32_t bits = float_to_bits(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

LLMX_INLINE float f16_to_float(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 31u;
  const uint32_t mantissa = bits & 0x3ffu;
  if (exponent == 31u) return bits_to_float(sign | 0x7f800000u | (mantissa << 13));
  if (exponent == 0u) {  // subnormal: mantissa * 2^-24, exact in float
    const float magnitude = static_cast<float>(static_cast<int32_t>(mantissa)) * 5.9604644775390625e-08f;
    return sign ? -magnitude : magnitude;
  }
  return bits_to_float(sign | ((exponent + 112u) << 23) | (mantissa << 13));
}

// ------------------------------------------------------------------------------------------------------------ AVX-512
#if LLMX_LEVEL == 2

struct F16 {
  __m512 v;
};
struct B32 {  // sixteen pairs of bf16; the low half of a dword is the even element
  __m512i v;
};

LLMX_INLINE F16 zero() { return {_mm512_setzero_ps()}; }
LLMX_INLINE F16 set1(float a) { return {_mm512_set1_ps(a)}; }
LLMX_INLINE F16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
LLMX_INLINE void store(float* p, F16 a) { _mm512_storeu_ps(p, a.v); }
LLMX_INLINE __mmask16 first_lanes(int n) { return static_cast<__mmask16>((1u << n) - 1u); }
LLMX_INLINE F16 load_n(const float* p, int n) { return {_mm512_maskz_loadu_ps(first_lanes(n), p)}; }  // lanes >= n are 0
LLMX_INLINE void store_n(float* p, F16 a, int n) { _mm512_mask_storeu_ps(p, first_lanes(n), a.v); }
LLMX_INLINE F16 add(F16 a, F16 b) { return {_mm512_add_ps(a.v, b.v)}; }
LLMX_INLINE F16 sub(F16 a, F16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
LLMX_INLINE F16 mul(F16 a, F16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
LLMX_INLINE F16 div(F16 a, F16 b) { return {_mm512_div_ps(a.v, b.v)}; }
LLMX_INLINE F16 fma(F16 a, F16 b, F16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }  // a * b + c
LLMX_INLINE F16 max(F16 a, F16 b) { return {_mm512_max_ps(a.v, b.v)}; }                 // b where either is NaN
LLMX_INLINE F16 min(F16 a, F16 b) { return {_mm512_min_ps(a.v, b.v)}; }                 // b where either is NaN
LLMX_INLINE F16 sqrt(F16 a) { return {_mm512_sqrt_ps(a.v)}; }
LLMX_INLINE F16 abs(F16 a) { return {_mm512_abs_ps(a.v)}; }
LLMX_INLINE F16 round_even(F16 a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
LLMX_INLINE F16 copysign(F16 magnitude, F16 sign) {
  return {_mm512_or_ps(_mm512_abs_ps(magnitude.v), _mm512_and_ps(sign.v, _mm512_set1_ps(-0.0f)))};
}
LLMX_INLINE F16 select_lt(F16 a, F16 b, F16 yes, F16 no) {  // a < b ? yes : no; NaN: no
  return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ), no.v, yes.v)};
}
LLMX_INLINE uint32_t mask_lt(F16 a, F16 b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ); }  // bit i: a[i] < b[i]
LLMX_INLINE uint32_t mask_eq(F16 a, F16 b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_EQ_OQ); }
LLMX_INLINE F16 select_mask(uint32_t mask, F16 yes, F16 no) {
  return {_mm512_mask_blend_ps(static_cast<__mmask16>(mask), no.v, yes.v)};
}
// a * 2^n, n integral. Under- and overflow as the format has them.
LLMX_INLINE F16 scale_pow2(F16 a, F16 n) { return {_mm512_scalef_ps(a.v, n.v)}; }

LLMX_INLINE F16 load_bf16(const uint16_t* p) {
  const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16))};
}
LLMX_INLINE void store_bf16(uint16_t* p, F16 a) {
  const __m512i bits = _mm512_castps_si512(a.v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16);
  const __mmask16 nan = _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q);
  const __m512i quiet = _mm512_or_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(0x40));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(_mm512_mask_blend_epi32(nan, rounded, quiet)));
}
LLMX_INLINE F16 load_f16(const uint16_t* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
LLMX_INLINE B32 load_pairs(const void* p) { return {_mm512_loadu_si512(p)}; }
LLMX_INLINE B32 set1_pair(uint32_t pair) { return {_mm512_set1_epi32(static_cast<int32_t>(pair))}; }
LLMX_INLINE F16 pair_even(B32 a) { return {_mm512_castsi512_ps(_mm512_slli_epi32(a.v, 16))}; }
LLMX_INLINE F16 pair_odd(B32 a) { return {_mm512_castsi512_ps(_mm512_and_si512(a.v, _mm512_set1_epi32(static_cast<int>(0xffff0000u))))}; }
// acc + a.even * b.even + a.odd * b.odd, in the order of this level.
LLMX_INLINE F16 dot_pairs(F16 acc, B32 a, B32 b) {
  return {_mm512_dpbf16_ps(acc.v, reinterpret_cast<__m512bh>(a.v), reinterpret_cast<__m512bh>(b.v))};
}

LLMX_INLINE float hsum(F16 a) {
  const __m256 h8 = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  const __m128 h4 = _mm_add_ps(_mm256_castps256_ps128(h8), _mm256_extractf128_ps(h8, 1));
  const __m128 h2 = _mm_add_ps(h4, _mm_movehl_ps(h4, h4));
  return _mm_cvtss_f32(_mm_add_ss(h2, _mm_shuffle_ps(h2, h2, 1)));
}
LLMX_INLINE float hmax(F16 a) {
  const __m256 h8 = _mm256_max_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  const __m128 h4 = _mm_max_ps(_mm256_castps256_ps128(h8), _mm256_extractf128_ps(h8, 1));
  const __m128 h2 = _mm_max_ps(h4, _mm_movehl_ps(h4, h4));
  return _mm_cvtss_f32(_mm_max_ss(h2, _mm_shuffle_ps(h2, h2, 1)));
}
LLMX_INLINE F16 load_i8(const int8_t* p) {  // sixteen, as floats
  return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
}
// Round to nearest even, saturate, store thirty-two int8; sums: those of a and of b as stored.
LLMX_INLINE void store_i8(int8_t* p, F16 a, F16 b, int32_t* sums) {
  const __m128i low = _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(a.v)), high = _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(b.v));
  const __m256i bytes = _mm256_set_m128i(high, low);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), bytes);
  const __m256i fours = _mm256_dpbusd_epi32(_mm256_setzero_si256(), _mm256_set1_epi8(1), bytes);
  const __m128i two = _mm_hadd_epi32(_mm256_castsi256_si128(fours), _mm256_extracti128_si256(fours, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(sums), _mm_hadd_epi32(two, two));
}

// --------------------------------------------------------------------------------------------------------------- AVX2
#elif LLMX_LEVEL == 1

struct F16 {
  __m256 lo, hi;
};
struct B32 {
  __m256i lo, hi;
};

LLMX_INLINE F16 zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
LLMX_INLINE F16 set1(float a) { return {_mm256_set1_ps(a), _mm256_set1_ps(a)}; }
LLMX_INLINE F16 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
LLMX_INLINE void store(float* p, F16 a) {
  _mm256_storeu_ps(p, a.lo);
  _mm256_storeu_ps(p + 8, a.hi);
}
LLMX_INLINE F16 load_n(const float* p, int n) {
  float tmp[16] = {0};
  memcpy(tmp, p, static_cast<size_t>(n) * 4);
  return load(tmp);
}
LLMX_INLINE void store_n(float* p, F16 a, int n) {
  float tmp[16];
  store(tmp, a);
  memcpy(p, tmp, static_cast<size_t>(n) * 4);
}
#define LLMX_BOTH(name, intrinsic) \
  LLMX_INLINE F16 name(F16 a, F16 b) { return {intrinsic(a.lo, b.lo), intrinsic(a.hi, b.hi)}; }
LLMX_BOTH(add, _mm256_add_ps)
LLMX_BOTH(sub, _mm256_sub_ps)
LLMX_BOTH(mul, _mm256_mul_ps)
LLMX_BOTH(div, _mm256_div_ps)
LLMX_BOTH(max, _mm256_max_ps)
LLMX_BOTH(min, _mm256_min_ps)
#undef LLMX_BOTH
LLMX_INLINE F16 fma(F16 a, F16 b, F16 c) { return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)}; }
LLMX_INLINE F16 sqrt(F16 a) { return {_mm256_sqrt_ps(a.lo), _mm256_sqrt_ps(a.hi)}; }
LLMX_INLINE F16 abs(F16 a) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_andnot_ps(sign, a.lo), _mm256_andnot_ps(sign, a.hi)};
}
LLMX_INLINE F16 round_even(F16 a) {
  return {_mm256_round_ps(a.lo, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC), _mm256_round_ps(a.hi, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
LLMX_INLINE F16 copysign(F16 magnitude, F16 sign) {
  const __m256 bit = _mm256_set1_ps(-0.0f);
  return {_mm256_or_ps(_mm256_andnot_ps(bit, magnitude.lo), _mm256_and_ps(bit, sign.lo)),
          _mm256_or_ps(_mm256_andnot_ps(bit, magnitude.hi), _mm256_and_ps(bit, sign.hi))};
}
LLMX_INLINE F16 select_lt(F16 a, F16 b, F16 yes, F16 no) {
  return {_mm256_blendv_ps(no.lo, yes.lo, _mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ)),
          _mm256_blendv_ps(no.hi, yes.hi, _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ))};
}
LLMX_INLINE uint32_t mask_lt(F16 a, F16 b) {
  return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ))) |
         (static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ))) << 8);
}
LLMX_INLINE uint32_t mask_eq(F16 a, F16 b) {
  return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(a.lo, b.lo, _CMP_EQ_OQ))) |
         (static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(a.hi, b.hi, _CMP_EQ_OQ))) << 8);
}
LLMX_INLINE F16 select_mask(uint32_t mask, F16 yes, F16 no) {
  const __m256i bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  const __m256i lo = _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(static_cast<int>(mask)), bit), bit);
  const __m256i hi = _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(static_cast<int>(mask >> 8)), bit), bit);
  return {_mm256_blendv_ps(no.lo, yes.lo, _mm256_castsi256_ps(lo)), _mm256_blendv_ps(no.hi, yes.hi, _mm256_castsi256_ps(hi))};
}
LLMX_INLINE __m256 scale_pow2_half(__m256 a, __m256 n) {  // in two factors, so that the exponent field cannot wrap
  const __m256i whole = _mm256_cvtps_epi32(n);
  const __m256i first = _mm256_srai_epi32(whole, 1);
  const __m256i second = _mm256_sub_epi32(whole, first);
  const __m256i bias = _mm256_set1_epi32(127);
  const __m256 f = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(first, bias), 23));
  const __m256 s = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(second, bias), 23));
  return _mm256_mul_ps(_mm256_mul_ps(a, f), s);
}
LLMX_INLINE F16 scale_pow2(F16 a, F16 n) { return {scale_pow2_half(a.lo, n.lo), scale_pow2_half(a.hi, n.hi)}; }

LLMX_INLINE __m256 widen_bf16(__m128i half) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16)); }
LLMX_INLINE F16 load_bf16(const uint16_t* p) {
  return {widen_bf16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))), widen_bf16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
}
LLMX_INLINE __m256i round_bf16(__m256 a) {
  const __m256i bits = _mm256_castps_si256(a);
  const __m256i top = _mm256_srli_epi32(bits, 16);
  const __m256i odd = _mm256_and_si256(top, _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
  const __m256i quiet = _mm256_or_si256(top, _mm256_set1_epi32(0x40));
  return _mm256_blendv_epi8(rounded, quiet, _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q)));
}
LLMX_INLINE void store_bf16(uint16_t* p, F16 a) {
  const __m256i packed = _mm256_packus_epi32(round_bf16(a.lo), round_bf16(a.hi));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(packed, 0xd8));
}
LLMX_INLINE F16 load_f16(const uint16_t* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))), _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
}
LLMX_INLINE B32 load_pairs(const void* p) {
  const __m256i* q = static_cast<const __m256i*>(p);
  return {_mm256_loadu_si256(q), _mm256_loadu_si256(q + 1)};
}
LLMX_INLINE B32 set1_pair(uint32_t pair) {
  const __m256i v = _mm256_set1_epi32(static_cast<int32_t>(pair));
  return {v, v};
}
LLMX_INLINE F16 pair_even(B32 a) { return {_mm256_castsi256_ps(_mm256_slli_epi32(a.lo, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(a.hi, 16))}; }
LLMX_INLINE F16 pair_odd(B32 a) {
  const __m256i top = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
  return {_mm256_castsi256_ps(_mm256_and_si256(a.lo, top)), _mm256_castsi256_ps(_mm256_and_si256(a.hi, top))};
}
LLMX_INLINE F16 dot_pairs(F16 acc, B32 a, B32 b) { return fma(pair_odd(a), pair_odd(b), fma(pair_even(a), pair_even(b), acc)); }

LLMX_INLINE float hsum(F16 a) {
  const __m256 h8 = _mm256_add_ps(a.lo, a.hi);
  const __m128 h4 = _mm_add_ps(_mm256_castps256_ps128(h8), _mm256_extractf128_ps(h8, 1));
  const __m128 h2 = _mm_add_ps(h4, _mm_movehl_ps(h4, h4));
  return _mm_cvtss_f32(_mm_add_ss(h2, _mm_shuffle_ps(h2, h2, 1)));
}
LLMX_INLINE float hmax(F16 a) {
  const __m256 h8 = _mm256_max_ps(a.lo, a.hi);
  const __m128 h4 = _mm_max_ps(_mm256_castps256_ps128(h8), _mm256_extractf128_ps(h8, 1));
  const __m128 h2 = _mm_max_ps(h4, _mm_movehl_ps(h4, h4));
  return _mm_cvtss_f32(_mm_max_ss(h2, _mm_shuffle_ps(h2, h2, 1)));
}
LLMX_INLINE F16 load_i8(const int8_t* p) {
  return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)))),
          _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p + 8))))};
}
LLMX_INLINE void store_i8(int8_t* p, F16 a, F16 b, int32_t* sums) {
  const __m256i first = _mm256_packs_epi32(_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi));
  const __m256i second = _mm256_packs_epi32(_mm256_cvtps_epi32(b.lo), _mm256_cvtps_epi32(b.hi));
  const __m256i mixed = _mm256_packs_epi16(first, second);  // groups of four, in the order 0 2 4 6 | 1 3 5 7
  const __m256i bytes = _mm256_permutevar8x32_epi32(mixed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), bytes);
  const __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), bytes);
  const __m256i fours = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
  const __m128i two = _mm_hadd_epi32(_mm256_castsi256_si128(fours), _mm256_extracti128_si256(fours, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(sums), _mm_hadd_epi32(two, two));
}

// -------------------------------------------------------------------------------------------------- portable and NEON
#else

// Vectors of four, which the compiler knows on every machine; on aarch64 they are the NEON registers. What NEON has better
// instructions for lies in simd_neon.h.

typedef float V4 __attribute__((vector_size(16)));
typedef int32_t I4 __attribute__((vector_size(16)));
typedef uint32_t U4 __attribute__((vector_size(16)));

struct F16 {
  V4 v[4];
};
struct B32 {
  U4 v[4];
};

#define LLMX_EACH for (int i = 0; i < 4; ++i)
LLMX_INLINE F16 set1(float a) { return {{V4{a, a, a, a}, V4{a, a, a, a}, V4{a, a, a, a}, V4{a, a, a, a}}}; }
LLMX_INLINE F16 zero() { return set1(0.0f); }
LLMX_INLINE F16 load(const float* p) {
  F16 r;
  memcpy(&r, p, 64);
  return r;
}
LLMX_INLINE void store(float* p, F16 a) { memcpy(p, &a, 64); }
LLMX_INLINE F16 load_n(const float* p, int n) {
  float tmp[16] = {0};
  memcpy(tmp, p, static_cast<size_t>(n) * 4);
  return load(tmp);
}
LLMX_INLINE void store_n(float* p, F16 a, int n) { memcpy(p, &a, static_cast<size_t>(n) * 4); }
#define LLMX_BOTH(name, expression)     \
  LLMX_INLINE F16 name(F16 a, F16 b) {  \
    F16 r;                              \
    LLMX_EACH r.v[i] = expression;      \
    return r;                           \
  }
LLMX_BOTH(add, a.v[i] + b.v[i])
LLMX_BOTH(sub, a.v[i] - b.v[i])
LLMX_BOTH(mul, a.v[i] * b.v[i])
LLMX_BOTH(div, a.v[i] / b.v[i])
LLMX_BOTH(max, a.v[i] > b.v[i] ? a.v[i] : b.v[i])
LLMX_BOTH(min, a.v[i] < b.v[i] ? a.v[i] : b.v[i])
#undef LLMX_BOTH
LLMX_INLINE U4 as_bits(V4 a) { return reinterpret_cast<U4>(a); }
LLMX_INLINE V4 as_floats(U4 a) { return reinterpret_cast<V4>(a); }
LLMX_INLINE F16 abs(F16 a) {
  F16 r;
  LLMX_EACH r.v[i] = as_floats(as_bits(a.v[i]) & 0x7fffffffu);
  return r;
}
LLMX_INLINE F16 copysign(F16 magnitude, F16 sign) {
  F16 r;
  LLMX_EACH r.v[i] = as_floats((as_bits(magnitude.v[i]) & 0x7fffffffu) | (as_bits(sign.v[i]) & 0x80000000u));
  return r;
}
LLMX_INLINE F16 select_lt(F16 a, F16 b, F16 yes, F16 no) {
  F16 r;
  LLMX_EACH r.v[i] = a.v[i] < b.v[i] ? yes.v[i] : no.v[i];
  return r;
}
LLMX_INLINE F16 scale_pow2(F16 a, F16 n) {
  F16 r;
  LLMX_EACH {
    const I4 whole = __builtin_convertvector(n.v[i], I4);
    const I4 first = whole >> 1;
    const I4 second = whole - first;
    r.v[i] = (a.v[i] * reinterpret_cast<V4>((first + 127) << 23)) * reinterpret_cast<V4>((second + 127) << 23);
  }
  return r;
}
LLMX_INLINE B32 load_pairs(const void* p) {
  B32 r;
  memcpy(&r, p, 64);
  return r;
}
LLMX_INLINE B32 set1_pair(uint32_t pair) {
  const U4 v = {pair, pair, pair, pair};
  return {{v, v, v, v}};
}
LLMX_INLINE F16 pair_even(B32 a) {
  F16 r;
  LLMX_EACH r.v[i] = as_floats(a.v[i] << 16);
  return r;
}
LLMX_INLINE F16 pair_odd(B32 a) {
  F16 r;
  LLMX_EACH r.v[i] = as_floats(a.v[i] & 0xffff0000u);
  return r;
}

}  // namespace LLMX_NS
}  // namespace llmx

#if LLMX_LEVEL == 3
#include "simd_neon.h"
#else
#include "simd_portable.h"
#endif

namespace llmx {
namespace LLMX_NS {

LLMX_INLINE F16 dot_pairs(F16 acc, B32 a, B32 b) { return fma(pair_odd(a), pair_odd(b), fma(pair_even(a), pair_even(b), acc)); }
#undef LLMX_EACH

#endif

// ---------------------------------------------------------------------------------------------------------- all levels

// Scalar a * b + c with the roundings of this level's fma.
LLMX_INLINE float fma1(float a, float b, float c) {
#if LLMX_LEVEL == 3
  return __builtin_fmaf(a, b, c);
#elif LLMX_LEVEL > 0
  return _mm_cvtss_f32(_mm_fmadd_ss(_mm_set_ss(a), _mm_set_ss(b), _mm_set_ss(c)));
#else
  return a * b + c;
#endif
}

// Two floats as one pair dword: a in the low (even) half.
LLMX_INLINE uint32_t make_pair(float a, float b) { return static_cast<uint32_t>(float_to_bf16(a)) | (static_cast<uint32_t>(float_to_bf16(b)) << 16); }

// e^x: exp(0) is exactly 1, -inf and anything below -87.3 give 0, above 88.72 inf, NaN stays. Error below 2 ulp.
// Coefficients: Cephes expf.
LLMX_INLINE F16 exp(F16 x) {
  const F16 low = set1(-87.33654f);
  const F16 bounded = max(set1(-88.0f), min(set1(89.0f), x));  // x second: NaN passes
  const F16 n = round_even(mul(bounded, set1(1.44269504f)));
  F16 r = fma(n, set1(-0.693359375f), bounded);
  r = fma(n, set1(2.12194440e-4f), r);
  F16 p = set1(1.9875691500e-4f);
  p = fma(p, r, set1(1.3981999507e-3f));
  p = fma(p, r, set1(8.3334519073e-3f));
  p = fma(p, r, set1(4.1665795894e-2f));
  p = fma(p, r, set1(1.6666665459e-1f));
  p = fma(p, r, set1(5.0000001201e-1f));
  p = fma(mul(p, r), r, r);
  return select_lt(x, low, zero(), scale_pow2(add(p, set1(1.0f)), n));
}

// tanh: a polynomial (Cephes tanhf) below 0.625, 1 - 2 / (e^2|x| + 1) above.
LLMX_INLINE F16 tanh(F16 x) {
  const F16 size = abs(x);
  const F16 z = mul(x, x);
  F16 p = set1(-5.70498872745e-3f);
  p = fma(p, z, set1(2.06390887954e-2f));
  p = fma(p, z, set1(-5.37397155531e-2f));
  p = fma(p, z, set1(1.33314422036e-1f));
  p = fma(p, z, set1(-3.33332819422e-1f));
  const F16 small = fma(mul(p, z), x, x);
  const F16 large = sub(set1(1.0f), div(set1(2.0f), add(exp(add(size, size)), set1(1.0f))));
  return select_lt(size, set1(0.625f), small, copysign(large, x));
}

}  // namespace LLMX_NS
}  // namespace llmx
