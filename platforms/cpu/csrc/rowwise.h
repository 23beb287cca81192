// Operations on rows of f32: norms, activations, sums and products, and everything between a qkv projection and attention.
// A row's result depends on that row alone; reductions run over sixteen lanes in ascending order and one fixed tree.
#pragma once
#include <cstdint>

#include "isa.h"

namespace llmx {

enum class NormKind : int { rms = 0, layer = 1, l2 = 2 };
enum class ActKind : int { silu = 0, gelu = 1, gelu_tanh = 2, relu = 3, relu2 = 4, quick_gelu = 5, tanh = 6, sigmoid = 7 };
enum class UnaryKind : int { scale = 0, softcap = 1, clip = 2 };
enum class BinaryKind : int { add = 0, mul = 1 };

struct NormParams {
  NormKind kind = NormKind::rms;
  float eps = 0.0f;
  bool eps_floor = false;        // max(mean, eps) for mean + eps
  const float* weight = nullptr;  // offset already added; null: 1
  const float* bias = nullptr;
};

struct NormArgs {
  NormParams norm;
  const float* x;
  const float* gate;  // null: not gated
  bool gate_after;
  float* y;
  int64_t width, groups;
};

struct RopeTable {
  const float* table = nullptr;  // [positions, rotary_dim]: cosines of the half, then sines; null: no rope
  int rotary_dim = 0;
  bool pairs = false;  // gptj: (2i, 2i + 1); neox: (i, i + rotary_dim / 2)
};

struct QkvArgs {
  const float* x;  // [T, ldx]: q (with gate: per head q, gate), k, v
  int64_t ldx;
  const int32_t* positions;
  float *q, *k, *v, *gate;  // null: absent
  int q_heads, kv_heads, head_dim, v_head_dim;
  float clip;                 // 0: off
  int norm_span;              // 0 none, 1 per head, 2 full width
  bool norm_before_rope, v_norm;
  NormParams q_norm, k_norm;
  RopeTable rope;
  const float* q_scale;  // [positions] or null
};

struct RowKernels {
  void (*norm)(const NormArgs&, int64_t row_begin, int64_t row_end);
  void (*act)(ActKind, const float* x, float* y, int64_t n);
  void (*act_mul)(ActKind, const float* x, float* y, int64_t width, int64_t row_begin, int64_t row_end);  // x [rows, 2 width]
  void (*binary)(BinaryKind, const float* x, const float* y, float* out, int64_t n);
  void (*binary_row)(BinaryKind, const float* x, const float* y, float* out, int64_t width, int64_t row_begin, int64_t row_end);  // y [width]
  void (*binary_column)(BinaryKind, const float* x, const float* y, float* out, int64_t width, int64_t row_begin, int64_t row_end);  // y [rows, 1]
  void (*unary)(UnaryKind, float value, const float* x, float* y, int64_t n);
  void (*softmax)(const float* x, float* y, int64_t width, int64_t row_begin, int64_t row_end);
  void (*qkv)(const QkvArgs&, int64_t row_begin, int64_t row_end);
  void (*rope)(const RopeTable&, const int32_t* positions, const float* x, float* y, int heads, int head_dim, int64_t row_begin, int64_t row_end);
};

const RowKernels& row_kernels(Isa isa);

}  // namespace llmx
