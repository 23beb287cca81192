// The linear family at one ISA level. See linear.h for layouts and the order of additions.
#pragma once
#include "linear.h"
#include "simd.h"

namespace llmx {
namespace LLMX_NS {

// ------------------------------------------------------------------------------------------------------- quantisation

// d = amax / 127, or amax / (127 * 256) for two planes, in f32; round to nearest even. A NaN makes d NaN, so that it reaches
// the output. A quarter is added before the high plane is rounded, so that the low one comes to -128..127.
template <int Planes>
LLMX_INLINE void quantize_block(const float* x, ActBlock<Planes>* out, int row, bool fine) {
  constexpr float kLargest = Planes == 2 ? 127.0f * 256.0f : 127.0f;
  const F16 a = load(x), b = load(x + 16);
  const float amax = hmax(max(abs(a), abs(b)));
  const bool whole = (mask_eq(a, a) & mask_eq(b, b)) == 0xffffu;
  const bool tiny = !(amax >= 1e-30f);  // the reciprocal would overflow; such a block is zero
  int32_t sum[2];  // of the halves
  if (Planes == 2 && fine) {
    int32_t low[2];
    const F16 scale = set1(tiny ? 0.0f : kLargest / amax);
    const F16 ya = round_even(mul(a, scale)), yb = round_even(mul(b, scale));
    const F16 quarter = set1(0.25f), part = set1(1.0f / 256.0f), base = set1(-256.0f);
    const F16 ha = round_even(mul(add(ya, quarter), part)), hb = round_even(mul(add(yb, quarter), part));
    store_i8(out->q[0][row], ha, hb, sum);
    store_i8(out->q[Planes - 1][row], fma(ha, base, ya), fma(hb, base, yb), low);
    for (int i = 0; i < 2; ++i) sum[i] = 256 * sum[i] + low[i];
  } else {
    const F16 scale = set1(tiny ? 0.0f : 127.0f / amax);
    store_i8(out->q[0][row], mul(a, scale), mul(b, scale), sum);
    if constexpr (Planes == 2) {
      for (int i = 0; i < 2; ++i) sum[i] *= 256;
      memset(out->q[1][row], 0, kBlock);
    }
  }
  const float d = whole ? (tiny ? 0.0f : amax / kLargest) : bits_to_float(0x7fc00000u);
  out->d[row] = d;
  out->s[row] = d * static_cast<float>(sum[0] + sum[1]);
  out->n[row] = -(sum[0] + sum[1]);
  out->h[row] = -sum[0];
}

template <int Planes>
static void quantize_tile(const float* x, int64_t ldx, int64_t rows, int64_t k, ActBlock<Planes>* tile, uint32_t fine) {
  const int64_t blocks = k / kBlock;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t b = 0; b < blocks; ++b) quantize_block<Planes>(x + r * ldx + b * kBlock, tile + b, static_cast<int>(r), (fine >> r & 1) != 0);
  }
  for (int64_t b = 0; b < blocks; ++b) tile[b].fine = static_cast<int32_t>(fine & ((1u << rows) - 1));
}

static void quantize(ActType type, const float* x, int64_t ldx, int64_t rows, int64_t k, void* out, uint32_t fine) {
  if (type == ActType::i16) {
    quantize_tile<2>(x, ldx, rows, k, static_cast<ActBlock<2>*>(out), fine);
  } else {
    quantize_tile<1>(x, ldx, rows, k, static_cast<ActBlock<1>*>(out), 0);
  }
}

static void largest(const float* x, int64_t step, int64_t blocks, float* out) {
  for (int64_t b = 0; b < blocks; ++b, x += step) out[b] = hmax(max(abs(load(x)), abs(load(x + 16))));
}

static void round_bf16(const float* x, int64_t ldx, int64_t k, uint16_t* out, int64_t ld, int64_t row_begin, int64_t row_end) {
  for (int64_t r = row_begin; r < row_end; ++r) {
    const float* row = x + r * ldx;
    uint16_t* to = out + r * ld;
    int64_t i = 0;
    for (; i + 16 <= k; i += 16) store_bf16(to + i, load(row + i));
    for (; i < k; ++i) to[i] = float_to_bf16(row[i]);
    if (k & 1) to[k] = 0;  // the other half of the last pair
  }
}

// ----------------------------------------------------------------------------------------------------------- epilogue

LLMX_INLINE void store_row(const GemmArgs& args, int64_t row, int64_t panel, F16 acc) {
  const int64_t column = panel * kPanel;
  const int64_t left = args.weight->rows - column;
  float* y = args.y + row * args.ldy + column;
  const float* residual = args.residual ? args.residual + row * args.ld_residual + column : nullptr;
  if (left >= kPanel) {
    if (args.bias) acc = add(acc, load(args.bias + column));
    if (residual) acc = add(load(residual), acc);
    store(y, acc);
  } else {
    const int n = static_cast<int>(left);
    if (args.bias) acc = add(acc, load_n(args.bias + column, n));
    if (residual) acc = add(load_n(residual, n), acc);
    store_n(y, acc, n);
  }
}

}  // namespace LLMX_NS
}  // namespace llmx

#include "linear_int_impl.h"  // reads store_row

namespace llmx {
namespace LLMX_NS {

// ------------------------------------------------------------------------------------------------------ dense weights

// A step of weights is kStep bytes per panel and kParts terms of each sum; part j of it meets element j of kActs elements of a row.
struct DenseF32 {
  using Act = float;
  using Vec = F16;
  static constexpr int kStep = 64, kParts = 1;
  static constexpr int kElements = 1;  // columns per step
  static constexpr int kRows = 6;      // of inputs in one tile, at most
  template <int Part>
  LLMX_INLINE Vec weight(const uint8_t* p) {
    return load(reinterpret_cast<const float*>(p));
  }
  LLMX_INLINE Vec act(const Act* p) { return set1(*p); }
  LLMX_INLINE F16 madd(F16 acc, Vec w, Vec a) { return fma(w, a, acc); }
};
struct DenseF16 : DenseF32 {
  static constexpr int kStep = 32;
  template <int Part>
  LLMX_INLINE Vec weight(const uint8_t* p) {
    return load_f16(reinterpret_cast<const uint16_t*>(p));
  }
};
#if LLMX_LEVEL == 2
struct DenseBf16 {  // pairs of rounded inputs
  using Act = uint32_t;
  using Vec = B32;
  static constexpr int kRows = 6;
  static constexpr int kStep = 64, kParts = 1;
  static constexpr int kElements = 2;
  template <int Part>
  LLMX_INLINE Vec weight(const uint8_t* p) {
    return load_pairs(p);
  }
  LLMX_INLINE Vec act(const Act* p) { return set1_pair(*p); }
  LLMX_INLINE F16 madd(F16 acc, Vec w, Vec a) { return dot_pairs(acc, w, a); }
};
#else
struct DenseBf16 : DenseF32 {  // inputs as they are
  static constexpr int kParts = 2;
  static constexpr int kElements = 2;
  static constexpr int kRows = LLMX_LEVEL == 1 ? 5 : 6;  // with six the compiler runs out of registers
  template <int Part>
  LLMX_INLINE Vec weight(const uint8_t* p) {
    return Part == 0 ? pair_even(load_pairs(p)) : pair_odd(load_pairs(p));
  }
};
#endif

template <class W, int MR, int NP, int Part>
LLMX_INLINE void step_dense(const uint8_t* w, int64_t stride, const typename W::Act* x, int64_t ld, F16 (&acc)[MR][NP]) {
  if constexpr (MR == 1) {  // each weight meets its sum at once: no register waits
    const typename W::Vec a = W::act(x + Part);
#pragma GCC unroll 4
    for (int p = 0; p < NP; ++p) acc[0][p] = W::madd(acc[0][p], W::template weight<Part>(w + p * stride), a);
    return;
  }
  typename W::Vec weight[NP];
#pragma GCC unroll 4
  for (int p = 0; p < NP; ++p) weight[p] = W::template weight<Part>(w + p * stride);
#pragma GCC unroll 8
  for (int r = 0; r < MR; ++r) {
    const typename W::Vec a = W::act(x + r * ld + Part);
#pragma GCC unroll 4
    for (int p = 0; p < NP; ++p) acc[r][p] = W::madd(acc[r][p], weight[p], a);
  }
}

template <class W, int MR, int NP>
static void tile_dense(const GemmArgs& args, int64_t panel, int64_t row) {
  const int64_t steps = (args.weight->cols + W::kElements - W::kParts) / W::kElements;  // pairs of inputs are padded, single inputs are not
  const int64_t stride = args.weight->panel_bytes;
  const int64_t ld = W::kParts == W::kElements ? args.ld : args.ld / W::kElements;
  const uint8_t* w = args.weight->data + panel * stride;
  const typename W::Act* x = static_cast<const typename W::Act*>(args.act) + row * ld;
  F16 acc[MR][NP];
#pragma GCC unroll 8
  for (int r = 0; r < MR; ++r) {
#pragma GCC unroll 4
    for (int p = 0; p < NP; ++p) acc[r][p] = zero();
  }
  for (int64_t k = 0; k < steps; ++k, w += W::kStep, x += W::kParts) {
    step_dense<W, MR, NP, 0>(w, stride, x, ld, acc);
    if constexpr (W::kParts == 2) {
      if constexpr (MR > 1) __asm__ volatile("" ::: "memory");  // read the weights again instead of keeping them: every register holds a sum
      step_dense<W, MR, NP, 1>(w, stride, x, ld, acc);
    }
  }
  if (W::kParts == 2 && (args.weight->cols & 1)) step_dense<W, MR, NP, 0>(w, stride, x, ld, acc);
#pragma GCC unroll 8
  for (int r = 0; r < MR; ++r) {
#pragma GCC unroll 4
    for (int p = 0; p < NP; ++p) store_row(args, row + r, panel + p, acc[r][p]);
  }
}

template <class W, int NP, int MR>
LLMX_INLINE void tile_of(const GemmArgs& args, int64_t panel, int64_t row) {
  // registers: up to 24 sums of 512 bits, or 6 pairs of 256 under one panel, 4 under several
  if constexpr (NP == 1 || MR * NP <= (LLMX_LEVEL == 2 ? 24 : 4)) {
    tile_dense<W, MR, NP>(args, panel, row);
  } else {
    for (int p = 0; p < NP; ++p) tile_dense<W, MR, 1>(args, panel + p, row);
  }
}

// Rows [begin, end) in tiles of about equal height.
template <class W, int NP>
static void rows_dense(const GemmArgs& args, int64_t panel, int64_t begin, int64_t end) {
  for (int64_t row = begin, take; row < end; row += take) {
    const int64_t left = end - row, tiles = (left + W::kRows - 1) / W::kRows;
    take = (left + tiles - 1) / tiles;
    switch (take) {
      case 6:
        tile_of<W, NP, W::kRows>(args, panel, row);
        break;
      case 5:
        tile_of<W, NP, 5>(args, panel, row);
        break;
      case 4:
        tile_of<W, NP, 4>(args, panel, row);
        break;
      case 3:
        tile_of<W, NP, 3>(args, panel, row);
        break;
      case 2:
        tile_of<W, NP, 2>(args, panel, row);
        break;
      default:
        tile_of<W, NP, 1>(args, panel, row);
    }
  }
}

template <class W>
static void gemm_dense(const GemmArgs& args, int64_t panel_begin, int64_t panel_end) {
  constexpr int64_t kResident = 192 << 10;  // bytes of inputs that stay in L2 while the panels go by
  const int64_t row_bytes = args.ld * (W::kParts == W::kElements ? 4 : 2);
  int64_t together = kResident / row_bytes / W::kRows * W::kRows;
  if (together < 2 * W::kRows) together = 2 * W::kRows;
  for (int64_t row = 0; row < args.m; row += together) {
    const int64_t end = row + together < args.m ? row + together : args.m, rows = end - row;
    int64_t p = panel_begin;
    if (LLMX_LEVEL == 2 || rows == 1) {
      for (; p + 4 <= panel_end; p += 4) rows_dense<W, 4>(args, p, row, end);
    } else if (rows == 2) {
      for (; p + 2 <= panel_end; p += 2) rows_dense<W, 2>(args, p, row, end);
    }
    for (; p < panel_end; ++p) rows_dense<W, 1>(args, p, row, end);
  }
}

static void gemm(const GemmArgs& args, int64_t panel_begin, int64_t panel_end) {
  switch (args.weight->type) {
    case WeightType::f32:
      return gemm_dense<DenseF32>(args, panel_begin, panel_end);
    case WeightType::f16:
      return gemm_dense<DenseF16>(args, panel_begin, panel_end);
    case WeightType::bf16:
      return gemm_dense<DenseBf16>(args, panel_begin, panel_end);
    case WeightType::q4_0:
      return either_int<WeightType::q4_0>(args, panel_begin, panel_end);
    case WeightType::q4_1:
      return either_int<WeightType::q4_1>(args, panel_begin, panel_end);
    case WeightType::q8_0:
      return either_int<WeightType::q8_0>(args, panel_begin, panel_end);
    case WeightType::q5_0:
      return either_int<WeightType::q5_0>(args, panel_begin, panel_end);
    case WeightType::q5_1:
      return either_int<WeightType::q5_1>(args, panel_begin, panel_end);
    case WeightType::q2_k:
      return either_int<WeightType::q2_k>(args, panel_begin, panel_end);
    case WeightType::q3_k:
      return either_int<WeightType::q3_k>(args, panel_begin, panel_end);
    case WeightType::q4_k:
      return either_int<WeightType::q4_k>(args, panel_begin, panel_end);
    case WeightType::q5_k:
      return either_int<WeightType::q5_k>(args, panel_begin, panel_end);
    case WeightType::q6_k:
      return either_int<WeightType::q6_k>(args, panel_begin, panel_end);
  }
}

}  // namespace LLMX_NS
}  // namespace llmx
