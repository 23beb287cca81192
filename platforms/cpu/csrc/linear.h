// Products of activation rows with packed weights: y[r, n] = sum over k of x[r, k] * w[n, k].
//
// A weight is cut into panels of 16 output channels; inside a panel k runs in order, so one register lane is one channel and no
// horizontal sum is needed. Each output element is one chain of additions in ascending k whatever the number of rows, the cut
// of the panels over threads, or the tile that computes it: the bits do not depend on the neighbours.
//
//   q4_0 q4_1 q8_0  groups of two 32-k blocks: scales d[2][16] f16, (q4_1) minima m[2][16] f16, then two tiles of unsigned
//                   bytes [k / 4][16 channels][4]; 4-bit tiles hold k and k + 16 in one byte. Activations int8 per row and block.
//   bf16            [k / 2][16][2], activations rounded to bf16
//   f16, f32        [k][16], activations f32
#pragma once
#include <cstdint>

#include "isa.h"

namespace llmx {

enum class WeightType : int { f32 = 0, f16 = 1, bf16 = 2, q4_0 = 3, q4_1 = 4, q8_0 = 5 };
enum class ActType : int { f32 = 0, bf16 = 1, i8 = 2 };

constexpr int kPanel = 16;     // output channels
constexpr int kBlock = 32;     // k per scale
constexpr int kTileRows = 16;  // activation rows that lie together

struct PackedWeight {
  WeightType type = WeightType::f32;
  int64_t rows = 0, cols = 0, panels = 0, panel_bytes = 0;
  const uint8_t* data = nullptr;
};

// int8 activations: one 32-k block of 16 rows. x ~ d * q; s = d * sum(q); n = -sum(q).
struct alignas(64) ActBlock {
  int8_t q[kTileRows][kBlock];
  float d[kTileRows];
  float s[kTileRows];
  int32_t n[kTileRows];
};

struct GemmArgs {
  const PackedWeight* weight;
  const void* act;  // f32 [m, ld]; bf16 [m, ld]; ActBlock [ceil(m / 16), blocks]
  int64_t ld;       // elements (f32, bf16); blocks per row (i8)
  int64_t m;
  float* y;         // [m, ldy], first column of this weight
  int64_t ldy;
  const float* bias;      // [rows] or null
  const float* residual;  // [m, ld_residual] added to the product, or null
  int64_t ld_residual;
};

struct LinearKernels {
  void (*quantize)(const float* x, int64_t ldx, int64_t m, int64_t k, ActBlock* out, int64_t tile_begin, int64_t tile_end);
  void (*round_bf16)(const float* x, int64_t ldx, int64_t k, uint16_t* out, int64_t ld, int64_t row_begin, int64_t row_end);
  void (*gemm)(const GemmArgs&, int64_t panel_begin, int64_t panel_end);
};

const LinearKernels& linear_kernels(Isa isa);

ActType act_type(WeightType type);
int64_t act_bytes(ActType type, int64_t m, int64_t k);  // size of a buffer for m rows; 0 for f32, which is read in place
inline int64_t act_ld(ActType type, int64_t k) { return type == ActType::i8 ? k / kBlock : (type == ActType::bf16 ? (k + 1) / 2 * 2 : k); }

int64_t panel_bytes(WeightType type, int64_t cols);
// Repacks panels [begin, end) from rows as the checkpoint stores them. `to` is the source's type or f32 (dequantised).
// Rows past the end are zero.
void pack_panels(WeightType from, WeightType to, int64_t rows, int64_t cols, const uint8_t* source, int64_t row_bytes, uint8_t* target,
                 int64_t begin, int64_t end);
void unpack_row(const PackedWeight& weight, int64_t row, float* out);  // the dequantised row [cols]

}  // namespace llmx
