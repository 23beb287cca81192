// Products of activation rows with packed weights: y[r, n] = sum over k of x[r, k] * w[n, k].
//
// A weight is cut into panels of 16 output channels; inside a panel k runs in order, so one register lane is one channel and no
// horizontal sum is needed. Each output element is one chain of additions in ascending k whatever the number of rows, the cut
// of the panels over threads, or the tile that computes it: the bits do not depend on the neighbours.
//
//   q4_0 q4_1 q5_0 q5_1 q8_0   groups of two 32-k blocks: scales d[2][16] f16, (q4_1, q5_1) minima m[2][16] f16, two tiles
//   q2_K q3_K q4_K q5_K q6_K   groups of 256 k: d[16] f16, (q2_K, q4_K, q5_K) dmin[16] f16, for each block of 32 k and, where a
//                              block has two scales, each half of it: factors int8[16], (same types) negated factors of the
//                              minimum int8[16]; padding to 64 bytes; eight tiles. The scale is d * factor, exact in f32
//   bf16                       [k / 2][16][2], activations rounded to bf16 where the level has a dot product of pairs, else f32
//   f16, f32                   [k][16], activations f32
//
// A tile is 32 k of 16 channels as unsigned codes, in lines of 64 bytes [16 channels][4 k]. 8 bits: line g holds k = 4 g + j.
// 4 bits: line p holds lines p and p + 4 in the halves of its bytes. 2 bits: line p holds lines p, p + 2, p + 4, p + 6. The fifth
// (q3_K: third) bit: eight words of 64 bits, word g bit i for byte i of line g. Bits five and six (q6_K): as 2 bits.
//
// Activations of quantised weights are integers with one scale per row and 32-k block: int16 as two planes of int8
// (a = 256 high + low), or int8 alone. A row of int8 may lie among int16 rows with a low plane of zeros: the factors of 256
// are exact, so its bits are those of int8 alone.
#pragma once
#include <cstdint>

#include "isa.h"

namespace llmx {

enum class WeightType : int { f32 = 0, f16 = 1, bf16 = 2, q4_0 = 3, q4_1 = 4, q8_0 = 5, q5_0 = 6, q5_1 = 7, q2_k = 8, q3_k = 9, q4_k = 10, q5_k = 11, q6_k = 12 };
constexpr int kWeightTypes = 13;
enum class ActType : int { f32 = 0, bf16 = 1, i8 = 2, i16 = 3 };
constexpr int kActTypes = 4;

constexpr int kPanel = 16;     // output channels
constexpr int kBlock = 32;     // k per scale
constexpr int kTileRows = 16;  // activation rows that lie together

struct PackedWeight {
  WeightType type = WeightType::f32;
  ActType act = ActType::f32;  // how its input rows are rounded
  int64_t rows = 0, cols = 0, panels = 0, panel_bytes = 0;
  const uint8_t* data = nullptr;
};

// Integer activations: one 32-k block of 16 rows. x ~ d * a; s = d * sum(a); n = -sum(a); h: n of the first 16 k. fine: bit r
// set: the low plane of row r counts. Rows past the last hold anything; kernels may compute them, and store nothing of it.
template <int Planes>
struct alignas(64) ActBlock {
  int8_t q[Planes][kTileRows][kBlock];  // one plane: a; two: high, low
  float d[kTileRows];
  float s[kTileRows];
  int32_t n[kTileRows];
  int32_t h[kTileRows];
  int32_t fine;
};

struct GemmArgs {
  const PackedWeight* weight;
  const void* act;  // f32 [m, ld]; bf16 [m, ld]; ActBlock [ceil(m / 16), blocks]
  int64_t ld;       // elements (f32, bf16); blocks per row (i8, i16)
  int64_t m;
  float* y;         // [m, ldy], first column of this weight
  int64_t ldy;
  const float* bias;      // [rows] or null
  const float* residual;  // [m, ld_residual] added to the product, or null
  int64_t ld_residual;
};

struct LinearKernels {
  // type i8 or i16; out: the blocks of the tile of rows that begins at x, at most 16 rows. fine (i16): bit r set: row r is
  // rounded to int16, else to int8
  void (*quantize)(ActType type, const float* x, int64_t ldx, int64_t rows, int64_t k, void* out, uint32_t fine);
  // out[b]: the largest size among kBlock values, for blocks `step` floats apart
  void (*largest)(const float* x, int64_t step, int64_t blocks, float* out);
  void (*round_bf16)(const float* x, int64_t ldx, int64_t k, uint16_t* out, int64_t ld, int64_t row_begin, int64_t row_end);
  void (*gemm)(const GemmArgs&, int64_t panel_begin, int64_t panel_end);
};

const LinearKernels& linear_kernels(Isa isa);

bool is_quantised(WeightType type);
int64_t block_elements(WeightType type);                    // columns of a quantised weight are a multiple of it
ActType act_type(WeightType type, bool int8);               // int8: quantised weights get int8 inputs, not int16
int64_t act_bytes(ActType type, int64_t m, int64_t k);      // size of a buffer for m rows
int64_t act_ld(ActType type, int64_t k);                    // GemmArgs::ld
int64_t act_tile_bytes(ActType type, int64_t k);            // from one tile of rows to the next

int64_t panel_bytes(WeightType type, int64_t cols);
// Repacks panels [begin, end) from rows as the checkpoint stores them. `to` is the source's type or f32 (dequantised).
// Rows past the end are zero.
void pack_panels(WeightType from, WeightType to, int64_t rows, int64_t cols, const uint8_t* source, int64_t row_bytes, uint8_t* target,
                 int64_t begin, int64_t end);
void unpack_row(const PackedWeight& weight, int64_t row, float* out);  // the dequantised row [cols]

}  // namespace llmx
