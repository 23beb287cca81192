// Low-rank adapters: y = g (W x + scale * B (A x)) + bias for the rows of requests that use one.
//
// A x: one sum per rank over sixteen lanes of k in ascending order and the level's tree, on the row as f32, before it is rounded for W.
// B's sum: one chain in the order of the ranks. Both are a row's own: neither the other rows nor the tile that computes them matter.
//
//   A   [rank][k padded to 16]             as stored: f32, f16 or bf16
//   B   [panels of 16 outputs][rank][16]   the same
//
// An embedding has A x = column x of A, and its scale multiplies all. A whole part has a weight in the place of W, which lies as A does:
// its outputs are then sums over sixteen lanes too.
#pragma once
#include <cstdint>

#include "isa.h"
#include "linear.h"

extern "C" {
struct LlmxLora {  // what an adapter adds to one part of the tape
  int32_t part, rank, a_type, b_type;  // types: WeightType f32, f16 or bf16
  const void* a;                       // [rank, columns of the weight]; whole: the weight
  const void* b;                       // [rows of the weight, rank]; whole: null
  const float* magnitude;              // [rows]: the length of each row of W + scale B A; null: as it comes
  float scale;
  int32_t kind;  // 0: a linear; 1: an embedding, whose weight is [columns, rows]; 2: a whole linear; 3: a whole embedding
};
}

namespace llmx {

struct LoraPart {
  int32_t rank = 0;  // 0: the adapter has nothing for this part; whole: rows of A
  bool whole = false;
  int32_t kept = 0;  // numbers of h per row: rank, or none for a whole embedding
  WeightType a_type = WeightType::f32, b_type = WeightType::f32;
  float scale = 0.0f;
  const uint8_t *a = nullptr, *b = nullptr;
  const float* g = nullptr;  // [rows] or null: 1
  int64_t k = 0, rows = 0;
};

// One adapter at one part of a product: which rows use it, and their A x.
struct LoraUse {
  const LoraPart* part;
  int32_t index;        // of the product's parts
  const int32_t* rows;  // [n], ascending
  int64_t n;
  float* h;  // [n, kept]
};

struct LoraKernels {
  // h of rows[begin, end), ranks [from, to)
  void (*shrink)(const LoraUse&, const float* x, int64_t ldx, int64_t begin, int64_t end, int64_t from, int64_t to);
  // Adds to y [*, ldy], the part's first column, the panels of rows[begin, end), and multiplies by g.
  void (*expand)(const LoraUse&, int64_t begin, int64_t end, float* y, int64_t ldy, int64_t panel_begin, int64_t panel_end);
  // What a product adds after that: columns [begin, end) of m rows. bias, residual: null or from column 0.
  void (*finish)(float* y, int64_t ldy, int64_t m, const float* bias, const float* residual, int64_t ld_residual, int64_t begin, int64_t end);
};

const LoraKernels& lora_kernels(Isa isa);

constexpr int64_t lora_width(int64_t k) { return (k + 15) / 16 * 16; }
constexpr int64_t lora_bytes(WeightType type) { return type == WeightType::f32 ? 4 : 2; }

}  // namespace llmx
