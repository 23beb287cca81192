// Scores of one row to probabilities, and the merge of chunks.
#pragma once
#include "attention_pages_impl.h"

namespace llmx {
namespace LLMX_NS {

constexpr float kMinusInf = -__builtin_inff();

// e^x for x <= 0: exp_below(0) is exactly 1, -inf gives 0, NaN stays. Relative error 1.6e-7 (2^r on [0, 1): own minimax fit).
LLMX_INLINE F16 exp_below(F16 x) {
#if LLMX_LEVEL == 2
  const F16 t = mul(max(set1(-200.0f), x), set1(1.44269504f));  // x second: NaN passes
  const F16 r = {_mm512_reduce_ps(t.v, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC)};  // t - floor(t)
  F16 p = fma(set1(1.86713075e-3f), r, set1(9.01702885e-3f));
  p = fma(p, r, set1(5.57999127e-2f));
  p = fma(p, r, set1(2.40164444e-1f));
  p = fma(p, r, set1(6.93151295e-1f));
  return scale_pow2(fma(p, r, set1(1.0f)), t);  // by 2^floor(t)
#else
  return exp(x);
#endif
}

struct RowRule {  // what one query row may see, and how its scores are changed
  int64_t position;
  int64_t first_key;  // lowest visible key
  float slope;        // alibi
  float soft_cap;
};

LLMX_INLINE F16 key_lanes() {
  static const float kIota[kLanes] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return load(kIota);
}

// Bit i: key `first + i` is visible.
LLMX_INLINE uint32_t visible_lanes(const RowRule& rule, int64_t first) {
  const int64_t last = rule.position - first;
  const int64_t skip = rule.first_key - first;
  uint32_t bits = last < 0 ? 0u : last >= 15 ? 0xffffu : (2u << last) - 1u;
  if (skip > 0) bits &= skip > 15 ? 0u : 0xffffu << skip;
  return bits;
}

// One block's scores with cap, alibi and mask.
LLMX_INLINE F16 finish_block(const RowRule& rule, int64_t key, float* at) {
  F16 s = load(at);
  if (rule.soft_cap > 0.0f) s = mul(set1(rule.soft_cap), tanh(div(s, set1(rule.soft_cap))));
  if (rule.slope != 0.0f) s = fma(set1(rule.slope), add(key_lanes(), set1(static_cast<float>(key - rule.position))), s);
  s = select_mask(visible_lanes(rule, key), s, set1(kMinusInf));
  store(at, s);
  return s;
}

// Final scores of one row in `score`, blocks [0, blocks) from key `first`; returns their maximum.
LLMX_INLINE float finish_scores(const RowRule& rule, int64_t first, int blocks, float* score) {
  int plain_begin = 0, plain_end = 0;  // blocks that are visible as a whole and stay as they are
  if (rule.soft_cap == 0.0f && rule.slope == 0.0f) {
    const int64_t skipped = rule.first_key > first ? (rule.first_key - first + kBlockTokens - 1) / kBlockTokens : 0;
    const int64_t past = rule.position < first ? 0 : (rule.position + 1 - first) / kBlockTokens;
    plain_begin = skipped < blocks ? static_cast<int>(skipped) : blocks;
    plain_end = past < blocks ? static_cast<int>(past) : blocks;
    if (plain_end < plain_begin) plain_end = plain_begin;
  }
  F16 top = set1(kMinusInf);
  for (int b = 0; b < plain_begin; ++b) top = max(finish_block(rule, first + b * kBlockTokens, score + b * kLanes), top);
  for (int b = plain_begin; b < plain_end; ++b) top = max(load(score + b * kLanes), top);
  for (int b = plain_end; b < blocks; ++b) top = max(finish_block(rule, first + b * kBlockTokens, score + b * kLanes), top);
  return hmax(top);
}

// Turn scores into operands of value_tile, in place, and return their sum as the operands have it (rounded; int8: before it).
// v_block, v_dim: where the chunk's V is; scale: what value_tile multiplies a row's sums with.

LLMX_INLINE float exponentials(F32Page, float* score, int blocks, float top, const uint8_t* const*, int, float*) {
  F16 sum = zero();
  for (int b = 0; b < blocks; ++b) {
    const F16 p = exp_below(sub(load(score + b * kLanes), set1(top)));
    store(score + b * kLanes, p);
    sum = add(sum, p);
  }
  return hsum(sum);
}

// Operands are p * (scale of V) as int16 of one scale. A key that is not seen has p = 0 and counts neither in the sum nor in the scale.
LLMX_INLINE float exponentials(Int8Page, float* score, int blocks, float top, const uint8_t* const* v_block, int v_dim, float* scale) {
  F16 sum = zero(), largest = zero(), total = zero();
  for (int b = 0; b < blocks; ++b) {
    const F16 p = exp_below(sub(load(score + b * kLanes), set1(top)));
    const F16 w = mul(p, load(reinterpret_cast<const float*>(v_block[b] + v_dim * kBlockTokens)));
    store(score + b * kLanes, w);
    sum = add(sum, p);
    largest = max(w, largest);
    total = add(total, w);
  }
  const float most = hmax(largest);
  const bool tiny = most < 1e-30f;
  const F16 inverse = set1(tiny ? 0.0f : kWeightLargest / most);
  for (int b = 0; b < blocks; ++b) store_ints(score + b * kLanes / 2, mul(load(score + b * kLanes), inverse));  // behind what has been read
  *scale = mask_eq(total, total) == 0xffffu ? (tiny ? 0.0f : most / kWeightLargest) : bits_to_float(0x7fc00000u);
  return hsum(sum);
}

LLMX_INLINE float exponentials(Bf16Page, float* score, int blocks, float top, const uint8_t* const*, int, float*) {
  F16 sum = zero();
#if LLMX_LEVEL == 2
  const B32 ones = set1_pair(0x3f803f80u);
  for (int b = 0; b < blocks; b += 2) {
    const F16 p0 = exp_below(sub(load(score + b * kLanes), set1(top)));
    const F16 p1 = b + 1 < blocks ? exp_below(sub(load(score + (b + 1) * kLanes), set1(top))) : zero();
    const B32 pairs = Bf16Page::pairs_of(p0, p1);
    _mm512_storeu_si512(score + b / 2 * kLanes, pairs.v);  // behind what has been read
    sum = dot_pairs(sum, pairs, ones);
  }
#else
  for (int b = 0; b < blocks; ++b) {
    uint16_t rounded[kLanes];
    store_bf16(rounded, exp_below(sub(load(score + b * kLanes), set1(top))));
    const F16 p = load_bf16(rounded);
    store(score + b * kLanes, p);
    sum = add(sum, p);
  }
#endif
  return hsum(sum);
}

// Softmax state of up to kMaxRows rows side by side: maximum and sum; the accumulators are [rows, acc_stride].
struct MergeScales {
  float old_scale[kLanes], new_scale[kLanes];
};

// The one merge of a chunk's maximum and sum into a row's. Rows with seen == 0 do not change.
LLMX_INLINE MergeScales merge_sums(float* m, float* l, const float* chunk_m, const float* chunk_l, const uint8_t* seen, int rows) {
  float m_old[kLanes], m_new[kLanes], top[kLanes];
  for (int r = 0; r < kLanes; ++r) {
    const bool live = r < rows && seen[r];
    m_old[r] = live ? m[r] : 0.0f;
    m_new[r] = live ? chunk_m[r] : 0.0f;
    top[r] = m_new[r] > m_old[r] ? m_new[r] : m_old[r];
  }
  MergeScales scales;
  store(scales.old_scale, exp_below(sub(load(m_old), load(top))));  // a row's first chunk: exp(-inf) = 0
  store(scales.new_scale, exp_below(sub(load(m_new), load(top))));
  for (int r = 0; r < rows; ++r) {
    if (seen[r]) {
      m[r] = top[r];
      l[r] = fma1(chunk_l[r], scales.new_scale[r], l[r] * scales.old_scale[r]);
    } else {
      scales.old_scale[r] = 1.0f;
      scales.new_scale[r] = 0.0f;
    }
  }
  return scales;
}

// out = acc / sum, with the sink's share in the sum. Adding 0 makes -0 of skipped terms +0.
LLMX_INLINE void finish_row(float* out, const float* acc, float m, float l, const float* sink, int v_dim) {
  float scale = 1.0f / l;
  if (sink) {
    const float top = *sink > m ? *sink : m;
    float parts[kLanes] = {m, *sink};
    store(parts, exp_below(sub(load(parts), set1(top))));
    scale = parts[0] / fma1(l, parts[0], parts[1]);
  }
  int d = 0;
  for (; d + kLanes <= v_dim; d += kLanes) store(out + d, add(mul(load(acc + d), set1(scale)), zero()));
  if (d < v_dim) store_n(out + d, add(mul(load(acc + d), set1(scale)), zero()), v_dim - d);
}

}  // namespace LLMX_NS
}  // namespace llmx
