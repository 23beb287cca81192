// What the portable level does in plain C++; part of simd.h, whose vectors of four it uses.
#pragma once

namespace llmx {
namespace LLMX_NS {

LLMX_INLINE F16 fma(F16 a, F16 b, F16 c) {  // two roundings at this level
  F16 r;
  LLMX_EACH r.v[i] = a.v[i] * b.v[i] + c.v[i];
  return r;
}
LLMX_INLINE F16 sqrt(F16 a) {
  float tmp[16];
  store(tmp, a);
  for (int i = 0; i < 16; ++i) tmp[i] = __builtin_sqrtf(tmp[i]);
  return load(tmp);
}
LLMX_INLINE F16 round_even(F16 a) {  // |a| < 2^22 goes through 1.5 * 2^23; larger values pass unchanged
  const V4 magic = {12582912.0f, 12582912.0f, 12582912.0f, 12582912.0f};
  F16 r;
  LLMX_EACH {
    const V4 rounded = (a.v[i] + magic) - magic;
    const V4 size = as_floats(as_bits(a.v[i]) & 0x7fffffffu);
    r.v[i] = size < 4194304.0f ? rounded : a.v[i];
  }
  return r;
}
LLMX_INLINE uint32_t mask_lt(F16 a, F16 b) {
  uint32_t mask = 0;
  for (int i = 0; i < 16; ++i) mask |= static_cast<uint32_t>(a.v[i >> 2][i & 3] < b.v[i >> 2][i & 3]) << i;
  return mask;
}
LLMX_INLINE uint32_t mask_eq(F16 a, F16 b) {
  uint32_t mask = 0;
  for (int i = 0; i < 16; ++i) mask |= static_cast<uint32_t>(a.v[i >> 2][i & 3] == b.v[i >> 2][i & 3]) << i;
  return mask;
}
LLMX_INLINE F16 select_mask(uint32_t mask, F16 yes, F16 no) {
  F16 r = no;
  for (int i = 0; i < 16; ++i) {
    if ((mask >> i) & 1u) r.v[i >> 2][i & 3] = yes.v[i >> 2][i & 3];
  }
  return r;
}
LLMX_INLINE F16 load_bf16(const uint16_t* p) {
  float tmp[16];
  for (int i = 0; i < 16; ++i) tmp[i] = bf16_to_float(p[i]);
  return load(tmp);
}
LLMX_INLINE void store_bf16(uint16_t* p, F16 a) {
  float tmp[16];
  store(tmp, a);
  for (int i = 0; i < 16; ++i) p[i] = float_to_bf16(tmp[i]);
}
LLMX_INLINE F16 load_f16(const uint16_t* p) {
  float tmp[16];
  for (int i = 0; i < 16; ++i) tmp[i] = f16_to_float(p[i]);
  return load(tmp);
}
LLMX_INLINE float hsum(F16 a) {
  const V4 h4 = (a.v[0] + a.v[2]) + (a.v[1] + a.v[3]);
  return (h4[0] + h4[2]) + (h4[1] + h4[3]);
}
LLMX_INLINE float hmax(F16 a) {
  float best = a.v[0][0];
  for (int i = 1; i < 16; ++i) best = a.v[i >> 2][i & 3] > best ? a.v[i >> 2][i & 3] : best;
  return best;
}
LLMX_INLINE F16 load_i8(const int8_t* p) {
  float tmp[16];
  for (int i = 0; i < 16; ++i) tmp[i] = static_cast<float>(p[i]);
  return load(tmp);
}
LLMX_INLINE void store_i8(int8_t* p, F16 a, F16 b, int32_t* sums) {
  float tmp[32];
  store(tmp, round_even(a));
  store(tmp + 16, round_even(b));
  sums[0] = sums[1] = 0;
  for (int i = 0; i < 32; ++i) {
    const float bounded = tmp[i] > 127.0f ? 127.0f : (tmp[i] < -128.0f ? -128.0f : tmp[i]);
    p[i] = static_cast<int8_t>(bounded == bounded ? bounded : 0.0f);
    sums[i >> 4] += p[i];
  }
}

}  // namespace LLMX_NS
}  // namespace llmx
