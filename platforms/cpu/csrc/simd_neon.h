// What NEON has instructions for; part of simd.h, whose vectors of four it uses.
#pragma once

namespace llmx {
namespace LLMX_NS {

LLMX_INLINE F16 fma(F16 a, F16 b, F16 c) {
  F16 r;
  LLMX_EACH r.v[i] = vfmaq_f32(c.v[i], a.v[i], b.v[i]);
  return r;
}
LLMX_INLINE F16 sqrt(F16 a) {
  F16 r;
  LLMX_EACH r.v[i] = vsqrtq_f32(a.v[i]);
  return r;
}
LLMX_INLINE F16 round_even(F16 a) {
  F16 r;
  LLMX_EACH r.v[i] = vrndnq_f32(a.v[i]);
  return r;
}
// Bit i of four: lane i.
LLMX_INLINE uint32_t lane_bits(uint32x4_t lanes) {
  const uint32x4_t bit = {1, 2, 4, 8};
  return vaddvq_u32(vandq_u32(lanes, bit));
}
LLMX_INLINE uint32_t mask_lt(F16 a, F16 b) {
  uint32_t mask = 0;
  LLMX_EACH mask |= lane_bits(vcltq_f32(a.v[i], b.v[i])) << 4 * i;
  return mask;
}
LLMX_INLINE uint32_t mask_eq(F16 a, F16 b) {
  uint32_t mask = 0;
  LLMX_EACH mask |= lane_bits(vceqq_f32(a.v[i], b.v[i])) << 4 * i;
  return mask;
}
LLMX_INLINE F16 select_mask(uint32_t mask, F16 yes, F16 no) {
  const uint32x4_t bit = {1, 2, 4, 8};
  F16 r;
  LLMX_EACH r.v[i] = vbslq_f32(vtstq_u32(vdupq_n_u32(mask >> 4 * i), bit), yes.v[i], no.v[i]);
  return r;
}
LLMX_INLINE F16 load_bf16(const uint16_t* p) {
  F16 r;
  LLMX_EACH r.v[i] = vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p + 4 * i), 16));
  return r;
}
LLMX_INLINE void store_bf16(uint16_t* p, F16 a) {
  LLMX_EACH {
    const uint32x4_t bits = vreinterpretq_u32_f32(a.v[i]), top = vshrq_n_u32(bits, 16);
    const uint32x4_t rounded = vaddq_u32(bits, vaddq_u32(vandq_u32(top, vdupq_n_u32(1)), vdupq_n_u32(0x7fff)));
    const uint32x4_t quiet = vorrq_u32(top, vdupq_n_u32(0x40));
    vst1_u16(p + 4 * i, vmovn_u32(vbslq_u32(vceqq_f32(a.v[i], a.v[i]), vshrq_n_u32(rounded, 16), quiet)));
  }
}
LLMX_INLINE F16 load_f16(const uint16_t* p) {
  F16 r;
  LLMX_EACH r.v[i] = vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4 * i)));
  return r;
}
LLMX_INLINE float hsum(F16 a) {
  const V4 h4 = (a.v[0] + a.v[2]) + (a.v[1] + a.v[3]);
  return (h4[0] + h4[2]) + (h4[1] + h4[3]);
}
LLMX_INLINE float hmax(F16 a) {  // as max does: of a pair with a NaN the second counts
  const F16 crossed = {{a.v[2], a.v[3], a.v[0], a.v[1]}};
  const F16 h8 = max(a, crossed);
  const V4 h4 = h8.v[0] > h8.v[1] ? h8.v[0] : h8.v[1];
  const float left = h4[0] > h4[2] ? h4[0] : h4[2], right = h4[1] > h4[3] ? h4[1] : h4[3];
  return left > right ? left : right;
}
LLMX_INLINE F16 load_i8(const int8_t* p) {
  const int8x16_t bytes = vld1q_s8(p);
  const int16x8_t low = vmovl_s8(vget_low_s8(bytes)), high = vmovl_high_s8(bytes);
  return {{vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))), vcvtq_f32_s32(vmovl_high_s16(low)), vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))),
           vcvtq_f32_s32(vmovl_high_s16(high))}};
}
LLMX_INLINE int8x16_t narrow_i8(F16 a) {
  const int16x8_t low = vqmovn_high_s32(vqmovn_s32(vcvtnq_s32_f32(a.v[0])), vcvtnq_s32_f32(a.v[1]));
  const int16x8_t high = vqmovn_high_s32(vqmovn_s32(vcvtnq_s32_f32(a.v[2])), vcvtnq_s32_f32(a.v[3]));
  return vqmovn_high_s16(vqmovn_s16(low), high);
}
LLMX_INLINE void store_i8(int8_t* p, F16 a, F16 b, int32_t* sums) {
  const int8x16_t first = narrow_i8(a), second = narrow_i8(b);
  vst1q_s8(p, first);
  vst1q_s8(p + 16, second);
  sums[0] = vaddlvq_s8(first);
  sums[1] = vaddlvq_s8(second);
}

}  // namespace LLMX_NS
}  // namespace llmx
