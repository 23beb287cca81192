// Compiled once per level: chains of multiply-adds that are as many as it takes to hide an instruction's latency.
#include "roofline.h"
#include "simd.h"

namespace llmx {
namespace LLMX_NS {

constexpr int kChains = 12;

#if LLMX_LEVEL == 2

inline int64_t peak(PeakKind kind, int64_t rounds, float* sink) {
  if (kind == PeakKind::int8) {
    __m512i acc[kChains], a = _mm512_set1_epi8(3), b = _mm512_set1_epi8(2);
    for (auto& x : acc) x = _mm512_setzero_si512();
    for (int64_t r = 0; r < rounds; ++r)
      for (auto& x : acc) x = _mm512_dpbusd_epi32(x, a, b);
    for (int i = 1; i < kChains; ++i) acc[0] = _mm512_add_epi32(acc[0], acc[i]);
    *sink = static_cast<float>(_mm512_reduce_add_epi32(acc[0]));
    return rounds * kChains * 128;
  }
  __m512 acc[kChains];
  for (auto& x : acc) x = _mm512_setzero_ps();
  if (kind == PeakKind::bf16) {
    const __m512bh a = (__m512bh)_mm512_set1_epi32(0x3f803f80), b = a;  // ones
    for (int64_t r = 0; r < rounds; ++r)
      for (auto& x : acc) x = _mm512_dpbf16_ps(x, a, b);
  } else {
    const __m512 a = _mm512_set1_ps(0.5f), b = _mm512_set1_ps(0.25f);
    for (int64_t r = 0; r < rounds; ++r)
      for (auto& x : acc) x = _mm512_fmadd_ps(x, a, b);
  }
  for (int i = 1; i < kChains; ++i) acc[0] = _mm512_add_ps(acc[0], acc[i]);
  *sink = _mm512_reduce_add_ps(acc[0]);
  return rounds * kChains * (kind == PeakKind::bf16 ? 64 : 32);
}

#elif LLMX_LEVEL == 1

// No instruction multiplies bf16 here: such weights are widened, so their limit is that of f32.
inline int64_t peak(PeakKind kind, int64_t rounds, float* sink) {
  alignas(32) float out[8];
  if (kind == PeakKind::int8) {
    __m256i acc[kChains], a = _mm256_set1_epi8(3), b = _mm256_set1_epi8(2);
    const __m256i ones = _mm256_set1_epi16(1);
    for (auto& x : acc) x = _mm256_setzero_si256();
    for (int64_t r = 0; r < rounds; ++r) {
      for (auto& x : acc) x = _mm256_add_epi32(x, _mm256_madd_epi16(_mm256_maddubs_epi16(a, b), ones));
      __asm__ volatile("" : "+x"(a), "+x"(b));  // the product is the same in every round: keep it from being computed once
    }
    for (int i = 1; i < kChains; ++i) acc[0] = _mm256_add_epi32(acc[0], acc[i]);
    _mm256_store_ps(out, _mm256_cvtepi32_ps(acc[0]));
    *sink = out[0];
    return rounds * kChains * 64;
  }
  __m256 acc[kChains];
  const __m256 a = _mm256_set1_ps(0.5f), b = _mm256_set1_ps(0.25f);
  for (auto& x : acc) x = _mm256_setzero_ps();
  for (int64_t r = 0; r < rounds; ++r)
    for (auto& x : acc) x = _mm256_fmadd_ps(x, a, b);
  for (int i = 1; i < kChains; ++i) acc[0] = _mm256_add_ps(acc[0], acc[i]);
  _mm256_store_ps(out, acc[0]);
  *sink = out[0];
  return rounds * kChains * 16;
}

#elif LLMX_LEVEL == 3

// bf16 is widened here, so its limit is that of f32.
inline int64_t peak(PeakKind kind, int64_t rounds, float* sink) {
  if (kind == PeakKind::int8) {
    int32x4_t acc[kChains];
    const int8x16_t a = vdupq_n_s8(3), b = vdupq_n_s8(2);
    for (auto& x : acc) x = vdupq_n_s32(0);
    for (int64_t r = 0; r < rounds; ++r)
      for (auto& x : acc) x = vdotq_s32(x, a, b);
    for (int i = 1; i < kChains; ++i) acc[0] = vaddq_s32(acc[0], acc[i]);
    *sink = static_cast<float>(vaddvq_s32(acc[0]));
    return rounds * kChains * 32;
  }
  float32x4_t acc[kChains];
  const float32x4_t a = vdupq_n_f32(0.5f), b = vdupq_n_f32(0.25f);
  for (auto& x : acc) x = vdupq_n_f32(0.0f);
  for (int64_t r = 0; r < rounds; ++r)
    for (auto& x : acc) x = vfmaq_f32(b, x, a);
  for (int i = 1; i < kChains; ++i) acc[0] = vaddq_f32(acc[0], acc[i]);
  *sink = vaddvq_f32(acc[0]);
  return rounds * kChains * 8;
}

#else

// What the compiler makes of plain loops for the machine's baseline. int8 and bf16 have no own instructions there.
inline int64_t peak(PeakKind kind, int64_t rounds, float* sink) {
  constexpr int kWidth = 32;
  if (kind == PeakKind::int8) {
    int32_t acc[kWidth] = {};
    int16_t a[kWidth], b[kWidth];
    for (int i = 0; i < kWidth; ++i) a[i] = static_cast<int16_t>(i & 3), b[i] = static_cast<int16_t>(i & 7);
    for (int64_t r = 0; r < rounds; ++r) {
      for (int i = 0; i < kWidth; ++i) acc[i] += a[i] * b[i];
      __asm__ volatile("" : : "r"(a), "r"(b) : "memory");
    }
    *sink = static_cast<float>(acc[0] + acc[kWidth - 1]);
    return rounds * kWidth * 2;
  }
  float acc[kWidth] = {};
  for (int64_t r = 0; r < rounds; ++r)
    for (float& x : acc) x = x * 0.5f + 0.25f;
  *sink = acc[0] + acc[kWidth - 1];
  return rounds * kWidth * 2;
}

#endif

}  // namespace LLMX_NS
}  // namespace llmx
