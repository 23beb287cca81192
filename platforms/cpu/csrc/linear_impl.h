// The linear family at one ISA level. See linear.h for layouts and the order of additions.
#pragma once
#include "linear.h"
#include "simd.h"

namespace llmx {
namespace LLMX_NS {

template <WeightType T>
struct Quant {
  static constexpr bool kFourBit = T != WeightType::q8_0;
  static constexpr bool kMinimum = T == WeightType::q4_1;
  static constexpr int kZeroShift = T == WeightType::q8_0 ? 7 : 3;  // zero point 128 or 8
  static constexpr int kTile = kFourBit ? 256 : 512;
  static constexpr int kScales = kMinimum ? 128 : 64;
  static constexpr int kGroup = kScales + 2 * kTile;
};

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
  int32_t sum;
  if (Planes == 2 && fine) {
    const F16 scale = set1(tiny ? 0.0f : kLargest / amax);
    const F16 ya = round_even(mul(a, scale)), yb = round_even(mul(b, scale));
    const F16 quarter = set1(0.25f), part = set1(1.0f / 256.0f), base = set1(-256.0f);
    const F16 ha = round_even(mul(add(ya, quarter), part)), hb = round_even(mul(add(yb, quarter), part));
    sum = 256 * store_i8(out->q[0][row], ha, hb);
    sum += store_i8(out->q[Planes - 1][row], fma(ha, base, ya), fma(hb, base, yb));
  } else {
    const F16 scale = set1(tiny ? 0.0f : 127.0f / amax);
    sum = store_i8(out->q[0][row], mul(a, scale), mul(b, scale));
    if constexpr (Planes == 2) {
      sum *= 256;
      memset(out->q[1][row], 0, kBlock);
    }
  }
  const float d = whole ? (tiny ? 0.0f : amax / kLargest) : bits_to_float(0x7fc00000u);
  out->d[row] = d;
  out->s[row] = d * static_cast<float>(sum);
  out->n[row] = -sum;
}

template <int Planes>
static void quantize_tile(const float* x, int64_t ldx, int64_t rows, int64_t k, ActBlock<Planes>* tile, uint32_t fine) {
  const int64_t blocks = k / kBlock;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t b = 0; b < blocks; ++b) quantize_block<Planes>(x + r * ldx + b * kBlock, tile + b, static_cast<int>(r), (fine >> r & 1) != 0);
  }
  const bool any = (fine & ((1u << rows) - 1)) != 0;
  for (int64_t b = 0; b < blocks; ++b) tile[b].fine = any;
  for (int64_t b = 0; rows < kTileRows && b < blocks; ++b) {  // rows that a tile computes beside the real ones
    for (int p = 0; p < Planes; ++p) memset(tile[b].q[p][rows], 0, static_cast<size_t>((kTileRows - rows) * kBlock));
    for (int64_t r = rows; r < kTileRows; ++r) tile[b].d[r] = tile[b].s[r] = 0.0f, tile[b].n[r] = 0;
  }
}

static void quantize(ActType type, const float* x, int64_t ldx, int64_t rows, int64_t k, void* out, uint32_t fine) {
  if (type == ActType::i16) {
    quantize_tile<2>(x, ldx, rows, k, static_cast<ActBlock<2>*>(out), fine);
  } else {
    quantize_tile<1>(x, ldx, rows, k, static_cast<ActBlock<1>*>(out), 0);
  }
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

// ------------------------------------------------------------------------------------------------ integer activations
#if LLMX_LEVEL == 2

template <WeightType T>
LLMX_INLINE void unpack_tile(const uint8_t* tile, __m512i* w) {
  if constexpr (Quant<T>::kFourBit) {
    const __m512i low = _mm512_set1_epi8(15);
#pragma GCC unroll 4
    for (int p = 0; p < 4; ++p) {
      const __m512i v = _mm512_loadu_si512(tile + p * 64);
      w[p] = _mm512_and_si512(v, low);
      w[p + 4] = _mm512_and_si512(_mm512_srli_epi16(v, 4), low);
    }
  } else {
#pragma GCC unroll 8
    for (int g = 0; g < 8; ++g) w[g] = _mm512_loadu_si512(tile + g * 64);
  }
}

LLMX_INLINE __m512i bcast32(const int8_t* p) {
  int32_t v;
  memcpy(&v, p, 4);
  return _mm512_set1_epi32(v);
}

// sum[j] += weights * the row's 32 bytes, for G rows.
template <int G>
LLMX_INLINE void dot_rows(const __m512i* w, const int8_t (*q)[kBlock], __m512i* sum) {
#pragma GCC unroll 8
  for (int g = 0; g < 8; ++g) {
#pragma GCC unroll 4
    for (int j = 0; j < G; ++j) sum[j] = _mm512_dpbusd_epi32(sum[j], w[g], bcast32(&q[j][g * 4]));
  }
}

// acc[r] += one 32-k block, for the MR rows of a tile; G rows at a time keep G integer chains in flight. Without the low plane
// (Planes 2, not Fine) the weight's scale takes the factor 256.
template <WeightType T, int MR, int Planes, bool Fine>
LLMX_INLINE void block_int(const ActBlock<Planes>* act, const __m512i* w, __m512 scale, __m512* acc) {
  using Q = Quant<T>;
  constexpr int G = MR % 4 == 0 ? 4 : (MR % 3 == 0 ? 3 : MR);
  auto zero_point = [&](int row) {  // n is a multiple of 256 where two planes hold int8
    const __m512i n = _mm512_set1_epi32(act->n[row]);
    return Planes == 2 && !Fine ? _mm512_srai_epi32(n, 8 - Q::kZeroShift) : _mm512_slli_epi32(n, Q::kZeroShift);
  };
#pragma GCC unroll 16
  for (int r0 = 0; r0 < MR; r0 += G) {
    __m512i sum[G];
    if constexpr (Fine) {
#pragma GCC unroll 4
      for (int j = 0; j < G; ++j) sum[j] = _mm512_setzero_si512();
      dot_rows<G>(w, act->q[0] + r0, sum);
#pragma GCC unroll 4
      for (int j = 0; j < G; ++j) {
        sum[j] = _mm512_slli_epi32(sum[j], 8);
        if (!Q::kMinimum) sum[j] = _mm512_add_epi32(sum[j], zero_point(r0 + j));
      }
    } else {
#pragma GCC unroll 4
      for (int j = 0; j < G; ++j) sum[j] = Q::kMinimum ? _mm512_setzero_si512() : zero_point(r0 + j);
    }
    dot_rows<G>(w, act->q[Fine ? Planes - 1 : 0] + r0, sum);
#pragma GCC unroll 4
    for (int j = 0; j < G; ++j) {
      acc[r0 + j] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[j]), _mm512_mul_ps(scale, _mm512_set1_ps(act->d[r0 + j])), acc[r0 + j]);
    }
  }
}

// MR rows of one panel.
template <WeightType T, int MR, int Planes>
static void panel_int(const GemmArgs& args, int64_t panel, int64_t tile, int64_t rows) {
  using Q = Quant<T>;
  const uint8_t* base = args.weight->data + panel * args.weight->panel_bytes;
  const int64_t blocks = args.ld;
  const ActBlock<Planes>* act = static_cast<const ActBlock<Planes>*>(args.act) + tile * blocks;
  __m512 acc[MR];
#pragma GCC unroll 16
  for (int r = 0; r < MR; ++r) acc[r] = _mm512_setzero_ps();
  for (int64_t b = 0; b < blocks; ++b, ++act) {
    const uint8_t* group = base + (b >> 1) * Q::kGroup;
    const int half = static_cast<int>(b & 1);
    const F16 d = load_f16(reinterpret_cast<const uint16_t*>(group + half * 32));
    __m512i w[8];
    unpack_tile<T>(group + Q::kScales + half * Q::kTile, w);
    if (Planes == 2 && act->fine) {
      block_int<T, MR, Planes, true>(act, w, d.v, acc);
    } else {
      block_int<T, MR, Planes, false>(act, w, Planes == 2 ? _mm512_mul_ps(d.v, _mm512_set1_ps(256.0f)) : d.v, acc);
    }
    if constexpr (Q::kMinimum) {
      const F16 m = load_f16(reinterpret_cast<const uint16_t*>(group + 64 + half * 32));
#pragma GCC unroll 16
      for (int r = 0; r < MR; ++r) acc[r] = _mm512_fmadd_ps(m.v, _mm512_set1_ps(act->s[r]), acc[r]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < MR; ++r) {
    if (r < rows) store_row(args, tile * kTileRows + r, panel, {acc[r]});
  }
}

template <WeightType T, int Planes>
static void tile_int(const GemmArgs& args, int64_t panel, int64_t tile, int64_t rows) {
  switch (rows) {
    case 1:
      return panel_int<T, 1, Planes>(args, panel, tile, rows);
    case 2:
      return panel_int<T, 2, Planes>(args, panel, tile, rows);
    case 3:
      return panel_int<T, 3, Planes>(args, panel, tile, rows);
    case 4:
      return panel_int<T, 4, Planes>(args, panel, tile, rows);
    case 5:
    case 6:
      return panel_int<T, 6, Planes>(args, panel, tile, rows);
    case 7:
    case 8:
      return panel_int<T, 8, Planes>(args, panel, tile, rows);
    case 9:
    case 10:
    case 11:
    case 12:
      return panel_int<T, 12, Planes>(args, panel, tile, rows);
    default:
      return panel_int<T, 16, Planes>(args, panel, tile, rows);
  }
}

#elif LLMX_LEVEL == 1

// Sums of eight channels (half a tile, byte offset 0 or 32 in each 64-byte line) for one row. Nibbles times int8, eight pairs at
// a time, stay in 16 bits: 8 * 2 * 15 * 128 < 2^15. An 8-bit weight is two nibbles.
template <WeightType T>
LLMX_INLINE __m256i dot_half(const uint8_t* tile, const int8_t* q) {
  const __m256i low = _mm256_set1_epi8(15);
  auto bcast = [](const int8_t* p) {
    int32_t v;
    memcpy(&v, p, 4);
    return _mm256_set1_epi32(v);
  };
  __m256i first = _mm256_setzero_si256(), second = _mm256_setzero_si256();
  for (int g = 0; g < (Quant<T>::kFourBit ? 4 : 8); ++g) {
    const __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(tile + g * 64));
    const __m256i a = bcast(q + g * 4), b = Quant<T>::kFourBit ? bcast(q + 16 + g * 4) : a;
    first = _mm256_add_epi16(first, _mm256_maddubs_epi16(_mm256_and_si256(v, low), a));
    second = _mm256_add_epi16(second, _mm256_maddubs_epi16(_mm256_and_si256(_mm256_srli_epi16(v, 4), low), b));
  }
  const __m256i ones = _mm256_set1_epi16(1);
  const __m256i sum = _mm256_madd_epi16(first, ones), top = _mm256_madd_epi16(second, ones);
  return _mm256_add_epi32(sum, Quant<T>::kFourBit ? top : _mm256_slli_epi32(top, 4));
}

template <WeightType T, int MR, int Planes>
static void half_int(const GemmArgs& args, int64_t panel, int64_t tile, int row, float out[][kPanel], int half) {
  using Q = Quant<T>;
  const uint8_t* base = args.weight->data + panel * args.weight->panel_bytes;
  const ActBlock<Planes>* act = static_cast<const ActBlock<Planes>*>(args.act) + tile * args.ld;
  __m256 acc[MR];
  for (int r = 0; r < MR; ++r) acc[r] = _mm256_setzero_ps();
  for (int64_t b = 0; b < args.ld; ++b, ++act) {
    const uint8_t* group = base + (b >> 1) * Q::kGroup;
    const int odd = static_cast<int>(b & 1);
    const uint8_t* quants = group + Q::kScales + odd * Q::kTile + half * 32;
    const __m256 d = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(group + odd * 32 + half * 16)));
#pragma GCC unroll 4
    for (int r = 0; r < MR; ++r) {
      __m256i whole = dot_half<T>(quants, act->q[0][row + r]);
      if constexpr (Planes == 2) {
        whole = _mm256_slli_epi32(whole, 8);
        if (act->fine) whole = _mm256_add_epi32(whole, dot_half<T>(quants, act->q[1][row + r]));
      }
      if constexpr (!Q::kMinimum) whole = _mm256_add_epi32(whole, _mm256_set1_epi32(act->n[row + r] * (1 << Q::kZeroShift)));
      acc[r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(whole), _mm256_mul_ps(d, _mm256_set1_ps(act->d[row + r])), acc[r]);
    }
    if constexpr (Q::kMinimum) {
      const __m256 m = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(group + 64 + odd * 32 + half * 16)));
#pragma GCC unroll 4
      for (int r = 0; r < MR; ++r) acc[r] = _mm256_fmadd_ps(m, _mm256_set1_ps(act->s[row + r]), acc[r]);
    }
  }
  for (int r = 0; r < MR; ++r) _mm256_storeu_ps(out[r] + half * 8, acc[r]);
}

template <WeightType T, int Planes>
static void tile_int(const GemmArgs& args, int64_t panel, int64_t tile, int64_t rows) {
  float out[4][kPanel];
  int row = 0;
  for (; row + 4 <= rows; row += 4) {
    for (int half = 0; half < 2; ++half) half_int<T, 4, Planes>(args, panel, tile, row, out, half);
    for (int r = 0; r < 4; ++r) store_row(args, tile * kTileRows + row + r, panel, load(out[r]));
  }
  for (; row < rows; ++row) {
    for (int half = 0; half < 2; ++half) half_int<T, 1, Planes>(args, panel, tile, row, out, half);
    store_row(args, tile * kTileRows + row, panel, load(out[0]));
  }
}

#else

template <WeightType T>
LLMX_INLINE void dot_tile(const uint8_t* tile, const int8_t* q, int32_t* sum) {
  for (int g = 0; g < (Quant<T>::kFourBit ? 4 : 8); ++g) {
    for (int c = 0; c < kPanel; ++c) {
      for (int j = 0; j < 4; ++j) {
        const int byte = tile[g * 64 + c * 4 + j];
        if (Quant<T>::kFourBit) {
          sum[c] += (byte & 15) * q[g * 4 + j] + (byte >> 4) * q[16 + g * 4 + j];
        } else {
          sum[c] += byte * q[g * 4 + j];
        }
      }
    }
  }
}

template <WeightType T, int Planes>
static void tile_int(const GemmArgs& args, int64_t panel, int64_t tile, int64_t rows) {
  using Q = Quant<T>;
  const uint8_t* base = args.weight->data + panel * args.weight->panel_bytes;
  const ActBlock<Planes>* act = static_cast<const ActBlock<Planes>*>(args.act) + tile * args.ld;
  F16 acc[kTileRows];
  for (int64_t r = 0; r < rows; ++r) acc[r] = zero();
  for (int64_t b = 0; b < args.ld; ++b, ++act) {
    const uint8_t* group = base + (b >> 1) * Q::kGroup;
    const int half = static_cast<int>(b & 1);
    const F16 d = load_f16(reinterpret_cast<const uint16_t*>(group + half * 32));
    const F16 m = Q::kMinimum ? load_f16(reinterpret_cast<const uint16_t*>(group + 64 + half * 32)) : zero();
    for (int64_t r = 0; r < rows; ++r) {
      const uint8_t* quants = group + Q::kScales + half * Q::kTile;
      int32_t sum[kPanel] = {0};
      float whole[kPanel];
      dot_tile<T>(quants, act->q[0][r], sum);
      if constexpr (Planes == 2) {
        for (int c = 0; c < kPanel; ++c) sum[c] *= 256;
        if (act->fine) dot_tile<T>(quants, act->q[1][r], sum);
      }
      const int32_t zero_point = Q::kMinimum ? 0 : act->n[r] * (1 << Q::kZeroShift);
      for (int c = 0; c < kPanel; ++c) whole[c] = static_cast<float>(sum[c] + zero_point);
      acc[r] = fma(load(whole), mul(d, set1(act->d[r])), acc[r]);
      if (Q::kMinimum) acc[r] = fma(m, set1(act->s[r]), acc[r]);
    }
  }
  for (int64_t r = 0; r < rows; ++r) store_row(args, tile * kTileRows + r, panel, acc[r]);
}

#endif

template <WeightType T, int Planes>
static void gemm_int(const GemmArgs& args, int64_t panel_begin, int64_t panel_end) {
  // A few panels stay in L2 while the row tiles go by; a tile stays in L1 while its panels go by.
  constexpr int64_t kTogether = 8;
  for (int64_t first = panel_begin; first < panel_end; first += kTogether) {
    const int64_t end = first + kTogether < panel_end ? first + kTogether : panel_end;
    for (int64_t t = 0; t * kTileRows < args.m; ++t) {
      const int64_t left = args.m - t * kTileRows;
      for (int64_t p = first; p < end; ++p) tile_int<T, Planes>(args, p, t, left < kTileRows ? left : kTileRows);
    }
  }
}

// ------------------------------------------------------------------------------------------------------ dense weights

struct DenseF32 {
  using Act = float;
  using Vec = F16;
  static constexpr int kStep = 64;  // bytes of weights per step
  static constexpr int kActElements = 1;
  static int64_t steps(int64_t k) { return k; }
  LLMX_INLINE Vec weight(const uint8_t* p) { return load(reinterpret_cast<const float*>(p)); }
  LLMX_INLINE Vec act(const Act* p) { return set1(*p); }
  LLMX_INLINE F16 madd(F16 acc, Vec w, Vec a) { return fma(w, a, acc); }
};
struct DenseF16 : DenseF32 {
  static constexpr int kStep = 32;
  LLMX_INLINE Vec weight(const uint8_t* p) { return load_f16(reinterpret_cast<const uint16_t*>(p)); }
};
struct DenseBf16 {
  using Act = uint32_t;  // a pair
  using Vec = B32;
  static constexpr int kStep = 64;
  static constexpr int kActElements = 2;
  static int64_t steps(int64_t k) { return (k + 1) / 2; }
  LLMX_INLINE Vec weight(const uint8_t* p) { return load_pairs(p); }
  LLMX_INLINE Vec act(const Act* p) { return set1_pair(*p); }
  LLMX_INLINE F16 madd(F16 acc, Vec w, Vec a) { return dot_pairs(acc, w, a); }
};

template <class W, int MR, int NP>
static void tile_dense(const GemmArgs& args, int64_t panel, int64_t row) {
  const int64_t steps = W::steps(args.weight->cols);
  const int64_t stride = args.weight->panel_bytes;
  const int64_t ld = args.ld / W::kActElements;
  const uint8_t* w = args.weight->data + panel * stride;
  const typename W::Act* x = static_cast<const typename W::Act*>(args.act) + row * ld;
  F16 acc[MR][NP];
#pragma GCC unroll 8
  for (int r = 0; r < MR; ++r) {
#pragma GCC unroll 4
    for (int p = 0; p < NP; ++p) acc[r][p] = zero();
  }
  for (int64_t k = 0; k < steps; ++k, w += W::kStep) {
    typename W::Vec weight[NP];
#pragma GCC unroll 4
    for (int p = 0; p < NP; ++p) weight[p] = W::weight(w + p * stride);
#pragma GCC unroll 8
    for (int r = 0; r < MR; ++r) {
      const typename W::Vec a = W::act(x + r * ld + k);
#pragma GCC unroll 4
      for (int p = 0; p < NP; ++p) acc[r][p] = W::madd(acc[r][p], weight[p], a);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < MR; ++r) {
#pragma GCC unroll 4
    for (int p = 0; p < NP; ++p) store_row(args, row + r, panel + p, acc[r][p]);
  }
}

template <class W, int NP>
static void rows_dense(const GemmArgs& args, int64_t panel) {
  int64_t row = 0;
  for (; row + 6 <= args.m; row += 6) tile_dense<W, 6, NP>(args, panel, row);
  switch (args.m - row) {
    case 5:
      return tile_dense<W, 5, NP>(args, panel, row);
    case 4:
      return tile_dense<W, 4, NP>(args, panel, row);
    case 3:
      return tile_dense<W, 3, NP>(args, panel, row);
    case 2:
      return tile_dense<W, 2, NP>(args, panel, row);
    case 1:
      return tile_dense<W, 1, NP>(args, panel, row);
    default:
      return;
  }
}

template <class W>
static void gemm_dense(const GemmArgs& args, int64_t panel_begin, int64_t panel_end) {
  constexpr int kPanels = LLMX_LEVEL == 2 ? 4 : 1;  // registers: 6 rows x 4 panels of 512 bits, or 6 x 1 of 2 x 256
  int64_t p = panel_begin;
  if (args.m == 1) {
    for (; p + 4 <= panel_end; p += 4) tile_dense<W, 1, 4>(args, p, 0);
  } else {
    for (; p + kPanels <= panel_end; p += kPanels) rows_dense<W, kPanels>(args, p);
  }
  for (; p < panel_end; ++p) rows_dense<W, 1>(args, p);
}

static void gemm(const GemmArgs& args, int64_t panel_begin, int64_t panel_end) {
  const bool int8 = args.weight->act == ActType::i8;
  switch (args.weight->type) {
    case WeightType::f32:
      return gemm_dense<DenseF32>(args, panel_begin, panel_end);
    case WeightType::f16:
      return gemm_dense<DenseF16>(args, panel_begin, panel_end);
    case WeightType::bf16:
      return gemm_dense<DenseBf16>(args, panel_begin, panel_end);
    case WeightType::q4_0:
      return int8 ? gemm_int<WeightType::q4_0, 1>(args, panel_begin, panel_end) : gemm_int<WeightType::q4_0, 2>(args, panel_begin, panel_end);
    case WeightType::q4_1:
      return int8 ? gemm_int<WeightType::q4_1, 1>(args, panel_begin, panel_end) : gemm_int<WeightType::q4_1, 2>(args, panel_begin, panel_end);
    case WeightType::q8_0:
      return int8 ? gemm_int<WeightType::q8_0, 1>(args, panel_begin, panel_end) : gemm_int<WeightType::q8_0, 2>(args, panel_begin, panel_end);
  }
}

}  // namespace LLMX_NS
}  // namespace llmx
