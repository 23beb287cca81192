// The rowwise family at one ISA level. One inline function per formula, so that every use gives the same bits.
#pragma once
#include "rowwise.h"
#include "simd.h"

namespace llmx {
namespace LLMX_NS {

// Calls body(index, lanes) for [0, n) in steps of 16; the last step may have fewer lanes.
template <class F>
LLMX_INLINE void lanes(int64_t n, F body) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) body(i, kLanes);
  if (i < n) body(i, static_cast<int>(n - i));
}
LLMX_INLINE F16 get(const float* p, int n) { return n == kLanes ? load(p) : load_n(p, n); }
LLMX_INLINE void put(float* p, F16 a, int n) {
  if (n == kLanes) {
    store(p, a);
  } else {
    store_n(p, a, n);
  }
}

LLMX_INLINE F16 sigmoid(F16 x) { return div(set1(1.0f), add(set1(1.0f), exp(sub(zero(), x)))); }

// erf: Abramowitz and Stegun 7.1.26, error below 1.5e-7.
LLMX_INLINE F16 erf(F16 x) {
  const F16 size = abs(x);
  const F16 t = div(set1(1.0f), fma(set1(0.3275911f), size, set1(1.0f)));
  F16 p = set1(1.061405429f);
  p = fma(p, t, set1(-1.453152027f));
  p = fma(p, t, set1(1.421413741f));
  p = fma(p, t, set1(-0.284496736f));
  p = fma(p, t, set1(0.254829592f));
  const F16 tail = mul(mul(p, t), exp(sub(zero(), mul(x, x))));
  return copysign(sub(set1(1.0f), tail), x);
}

template <ActKind K>
LLMX_INLINE F16 activate(F16 x) {
  if constexpr (K == ActKind::silu) return div(x, add(set1(1.0f), exp(sub(zero(), x))));
  if constexpr (K == ActKind::gelu) return mul(mul(set1(0.5f), x), add(set1(1.0f), erf(mul(x, set1(0.70710678f)))));
  if constexpr (K == ActKind::gelu_tanh) {
    const F16 inner = mul(mul(set1(0.79788456f), x), fma(mul(x, x), set1(0.044715f), set1(1.0f)));
    return mul(mul(set1(0.5f), x), add(set1(1.0f), tanh(inner)));
  }
  if constexpr (K == ActKind::relu) return max(zero(), x);
  if constexpr (K == ActKind::relu2) {
    const F16 positive = max(zero(), x);
    return mul(positive, positive);
  }
  if constexpr (K == ActKind::quick_gelu) return mul(x, sigmoid(mul(x, set1(1.702f))));
  if constexpr (K == ActKind::tanh) return tanh(x);
  return sigmoid(x);
}

// Calls body with the activation as a compile-time constant.
template <class F>
LLMX_INLINE void with_act(ActKind kind, F body) {
  switch (kind) {
#define LLMX_CASE(name)  \
  case ActKind::name:    \
    body([](F16 x) __attribute__((always_inline)) { return activate<ActKind::name>(x); }); \
    break;
    LLMX_CASE(silu)
    LLMX_CASE(gelu)
    LLMX_CASE(gelu_tanh)
    LLMX_CASE(relu)
    LLMX_CASE(relu2)
    LLMX_CASE(quick_gelu)
    LLMX_CASE(tanh)
    LLMX_CASE(sigmoid)
#undef LLMX_CASE
  }
}

static void act(ActKind kind, const float* x, float* y, int64_t n) {
  with_act(kind, [&](auto f) { lanes(n, [&](int64_t i, int m) { put(y + i, f(get(x + i, m)), m); }); });
}

static void act_mul(ActKind kind, const float* x, float* y, int64_t width, int64_t row_begin, int64_t row_end) {
  with_act(kind, [&](auto f) {
    for (int64_t r = row_begin; r < row_end; ++r) {
      const float* gate = x + r * 2 * width;
      float* out = y + r * width;
      lanes(width, [&](int64_t i, int m) { put(out + i, mul(f(get(gate + i, m)), get(gate + width + i, m)), m); });
    }
  });
}

template <class F>
LLMX_INLINE void with_binary(BinaryKind kind, F body) {
  if (kind == BinaryKind::add) {
    body([](F16 a, F16 b) { return add(a, b); });
  } else {
    body([](F16 a, F16 b) { return mul(a, b); });
  }
}

static void binary(BinaryKind kind, const float* x, const float* y, float* out, int64_t n) {
  with_binary(kind, [&](auto f) { lanes(n, [&](int64_t i, int m) { put(out + i, f(get(x + i, m), get(y + i, m)), m); }); });
}

static void binary_row(BinaryKind kind, const float* x, const float* y, float* out, int64_t width, int64_t row_begin, int64_t row_end) {
  for (int64_t r = row_begin; r < row_end; ++r) binary(kind, x + r * width, y, out + r * width, width);
}

static void binary_column(BinaryKind kind, const float* x, const float* y, float* out, int64_t width, int64_t row_begin, int64_t row_end) {
  with_binary(kind, [&](auto f) {
    for (int64_t r = row_begin; r < row_end; ++r) {
      const F16 value = set1(y[r]);
      lanes(width, [&](int64_t i, int m) { put(out + r * width + i, f(get(x + r * width + i, m), value), m); });
    }
  });
}

static void unary(UnaryKind kind, float value, const float* x, float* y, int64_t n) {
  const F16 v = set1(value);
  if (kind == UnaryKind::scale) {
    lanes(n, [&](int64_t i, int m) { put(y + i, mul(get(x + i, m), v), m); });
  } else if (kind == UnaryKind::softcap) {
    lanes(n, [&](int64_t i, int m) { put(y + i, mul(v, tanh(div(get(x + i, m), v))), m); });
  } else {
    const F16 low = set1(-value);
    lanes(n, [&](int64_t i, int m) { put(y + i, max(low, min(v, get(x + i, m))), m); });
  }
}

static void softmax(const float* x, float* y, int64_t width, int64_t row_begin, int64_t row_end) {
  for (int64_t r = row_begin; r < row_end; ++r) {
    const float* in = x + r * width;
    float* out = y + r * width;
    F16 top = set1(-__builtin_inff());
    lanes(width, [&](int64_t i, int m) { top = max(m == kLanes ? load(in + i) : select_mask((1u << m) - 1u, load_n(in + i, m), top), top); });
    const F16 highest = set1(hmax(top));
    F16 total = zero();
    lanes(width, [&](int64_t i, int m) {
      const F16 e = exp(sub(get(in + i, m), highest));
      put(out + i, e, m);
      total = add(total, get(out + i, m));
    });
    const F16 inverse = set1(1.0f / hsum(total));
    lanes(width, [&](int64_t i, int m) { put(out + i, mul(get(out + i, m), inverse), m); });
  }
}

// ------------------------------------------------------------------------------------------------------------- norms

LLMX_INLINE float sum_of_squares(const float* x, int64_t n, float mean) {
  F16 total = zero();
  const F16 shift = set1(mean);
  lanes(n, [&](int64_t i, int m) {
    F16 v = get(x + i, m);
    if (mean != 0.0f) v = m == kLanes ? sub(v, shift) : select_mask((1u << m) - 1u, sub(v, shift), zero());
    total = fma(v, v, total);
  });
  return hsum(total);
}

LLMX_INLINE float mean_of(const float* x, int64_t n) {
  F16 total = zero();
  lanes(n, [&](int64_t i, int m) { total = add(total, get(x + i, m)); });
  return hsum(total) / static_cast<float>(n);
}

// y = (x - mean) * inverse * weight + bias; y may be x.
LLMX_INLINE void norm_span(const NormParams& p, const float* x, float* y, int64_t n, int64_t at) {
  const float mean = p.kind == NormKind::layer ? mean_of(x, n) : 0.0f;
  const float squares = sum_of_squares(x, n, mean);
  const float size = p.kind == NormKind::l2 ? squares : squares / static_cast<float>(n);
  const float floor = p.eps_floor ? (size < p.eps ? p.eps : size) : size + p.eps;
  const F16 inverse = set1(1.0f / __builtin_sqrtf(floor)), shift = set1(mean);
  lanes(n, [&](int64_t i, int m) {
    F16 v = get(x + i, m);
    if (p.kind == NormKind::layer) v = sub(v, shift);
    v = mul(v, inverse);
    if (p.weight) v = mul(v, get(p.weight + at + i, m));
    if (p.bias) v = add(v, get(p.bias + at + i, m));
    put(y + i, v, m);
  });
}

LLMX_INLINE void times_silu(const float* x, const float* z, float* y, int64_t n) {
  lanes(n, [&](int64_t i, int m) { put(y + i, mul(get(x + i, m), activate<ActKind::silu>(get(z + i, m))), m); });
}

static void norm(const NormArgs& a, int64_t row_begin, int64_t row_end) {
  const int64_t span = a.width / a.groups;
  for (int64_t r = row_begin; r < row_end; ++r) {
    const float* x = a.x + r * a.width;
    float* y = a.y + r * a.width;
    if (a.gate && !a.gate_after) {
      times_silu(x, a.gate + r * a.width, y, a.width);
      x = y;
    }
    for (int64_t g = 0; g < a.groups; ++g) norm_span(a.norm, x + g * span, y + g * span, span, g * span);
    if (a.gate && a.gate_after) times_silu(y, a.gate + r * a.width, y, a.width);
  }
}

// --------------------------------------------------------------------------------------------------- rope and qkv_prep

// x1' = x1 cos - x2 sin, x2' = x2 cos + x1 sin; elements past rotary_dim are copied. y may be x.
LLMX_INLINE void rotate(const RopeTable& rope, int32_t position, const float* x, float* y, int head_dim) {
  const int half = rope.rotary_dim / 2;
  const float* cosines = rope.table + static_cast<int64_t>(position) * rope.rotary_dim;
  const float* sines = cosines + half;
  if (rope.pairs) {
    for (int i = 0; i < half; ++i) {
      const float a = x[2 * i], b = x[2 * i + 1];
      y[2 * i] = fma1(a, cosines[i], -(b * sines[i]));
      y[2 * i + 1] = fma1(b, cosines[i], a * sines[i]);
    }
  } else {
    lanes(half, [&](int64_t i, int m) {
      const F16 a = get(x + i, m), b = get(x + half + i, m), c = get(cosines + i, m), s = get(sines + i, m);
      put(y + i, fma(a, c, sub(zero(), mul(b, s))), m);
      put(y + half + i, fma(b, c, mul(a, s)), m);
    });
  }
  if (x != y) lanes(head_dim - rope.rotary_dim, [&](int64_t i, int m) { put(y + rope.rotary_dim + i, get(x + rope.rotary_dim + i, m), m); });
}

static void rope(const RopeTable& table, const int32_t* positions, const float* x, float* y, int heads, int head_dim, int64_t row_begin, int64_t row_end) {
  for (int64_t r = row_begin; r < row_end; ++r) {
    for (int h = 0; h < heads; ++h) rotate(table, positions[r], x + (r * heads + h) * head_dim, y + (r * heads + h) * head_dim, head_dim);
  }
}

LLMX_INLINE void copy_clipped(const float* x, float* y, int64_t n, float clip) {
  if (clip > 0.0f) {
    const F16 high = set1(clip), low = set1(-clip);
    lanes(n, [&](int64_t i, int m) { put(y + i, max(low, min(high, get(x + i, m))), m); });
  } else {
    lanes(n, [&](int64_t i, int m) { put(y + i, get(x + i, m), m); });
  }
}

LLMX_INLINE void norm_heads(const NormParams& p, int span_kind, float* x, int heads, int head_dim) {
  if (span_kind == 2) {
    norm_span(p, x, x, static_cast<int64_t>(heads) * head_dim, 0);
  } else {
    for (int h = 0; h < heads; ++h) norm_span(p, x + h * head_dim, x + h * head_dim, head_dim, 0);
  }
}

LLMX_INLINE void prepare(const QkvArgs& a, const NormParams& p, float* x, int heads, int32_t position) {
  if (a.norm_span && a.norm_before_rope) norm_heads(p, a.norm_span, x, heads, a.head_dim);
  if (a.rope.table) {
    for (int h = 0; h < heads; ++h) rotate(a.rope, position, x + h * a.head_dim, x + h * a.head_dim, a.head_dim);
  }
  if (a.norm_span && !a.norm_before_rope) norm_heads(p, a.norm_span, x, heads, a.head_dim);
}

static void qkv(const QkvArgs& a, int64_t row_begin, int64_t row_end) {
  const int64_t q_width = static_cast<int64_t>(a.q_heads) * a.head_dim;
  const int64_t k_width = static_cast<int64_t>(a.kv_heads) * a.head_dim, v_width = static_cast<int64_t>(a.kv_heads) * a.v_head_dim;
  for (int64_t r = row_begin; r < row_end; ++r) {
    const float* x = a.x + r * a.ldx;
    const int32_t position = a.positions ? a.positions[r] : 0;
    if (a.q) {
      float* q = a.q + r * q_width;
      if (a.gate) {
        for (int h = 0; h < a.q_heads; ++h, x += 2 * a.head_dim) {
          copy_clipped(x, q + h * a.head_dim, a.head_dim, a.clip);
          copy_clipped(x + a.head_dim, a.gate + r * q_width + h * a.head_dim, a.head_dim, a.clip);
        }
      } else {
        copy_clipped(x, q, q_width, a.clip);
        x += q_width;
      }
      prepare(a, a.q_norm, q, a.q_heads, position);
      if (a.q_scale) unary(UnaryKind::scale, a.q_scale[position], q, q, q_width);
    }
    if (a.k) {
      float *k = a.k + r * k_width, *v = a.v + r * v_width;
      copy_clipped(x, k, k_width, a.clip);
      prepare(a, a.k_norm, k, a.kv_heads, position);
      copy_clipped(x + k_width, v, v_width, a.clip);
      const NormParams plain{NormKind::rms, a.k_norm.eps, false, nullptr, nullptr};
      if (a.v_norm) norm_heads(plain, 1, v, a.kv_heads, a.v_head_dim);
    }
  }
}

constexpr RowKernels kRowKernels = {norm, act, act_mul, binary, binary_row, binary_column, unary, softmax, qkv, rope};

}  // namespace LLMX_NS
}  // namespace llmx
