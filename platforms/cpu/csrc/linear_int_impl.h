// Products of integer activations with quantised weights, at one ISA level; part of linear_impl.h. A kernel unpacks a tile of
// codes once and uses it for several rows. Integer sums are exact, so only the chain of f32 additions over blocks is fixed:
// for each block its scales in order, then its minima in order.
#pragma once
#include "linear_quant.h"
#include "simd.h"

namespace llmx {
namespace LLMX_NS {

template <WeightType T>
struct Quant {
  static constexpr QuantForm kForm = quant_form(T);
  static constexpr int kSubs = kForm.subs, kBlocks = kForm.blocks();
  static constexpr bool kMinimum = kForm.minimum;
  static constexpr int kZeroShift = kForm.zero_shift;
};

// Scales (part 0) or minima (part 1) of 16 channels in f32; the product of a wide type is exact.
template <WeightType T>
LLMX_INLINE F16 scale_of(const uint8_t* group, int block, int sub, int part) {
  constexpr QuantForm form = quant_form(T);
  if constexpr (form.wide) {
    const F16 factor = load_i8(reinterpret_cast<const int8_t*>(group + form.factors(block, sub, part)));
    return mul(load_f16(reinterpret_cast<const uint16_t*>(group + part * 32)), factor);
  } else {
    return load_f16(reinterpret_cast<const uint16_t*>(group + part * 64 + block * 32));
  }
}

// -sum(a) of the k that scale `sub` covers.
template <WeightType T, class Block>
LLMX_INLINE int32_t minus_sum(const Block* act, int sub, int64_t row) {
  if constexpr (Quant<T>::kSubs == 1) return act->n[row];
  return sub == 0 ? act->h[row] : act->n[row] - act->h[row];
}

// d * sum(a) of the same.
template <WeightType T, class Block>
LLMX_INLINE float scaled_sum(const Block* act, int sub, int64_t row) {
  if constexpr (Quant<T>::kSubs == 1) return act->s[row];
  return act->d[row] * static_cast<float>(-minus_sum<T>(act, sub, row));
}

#if LLMX_LEVEL == 2

template <WeightType T>
LLMX_INLINE void unpack_tile(const uint8_t* tile, __m512i* w) {
  constexpr QuantForm form = quant_form(T);
  const __m512i low = _mm512_set1_epi8(15), two = _mm512_set1_epi8(3);
  if constexpr (form.low == 8) {
#pragma GCC unroll 8
    for (int g = 0; g < 8; ++g) w[g] = _mm512_loadu_si512(tile + g * 64);
  } else if constexpr (form.low == 4) {
#pragma GCC unroll 4
    for (int p = 0; p < 4; ++p) {
      const __m512i v = _mm512_loadu_si512(tile + p * 64);
      w[p] = _mm512_and_si512(v, low);
      w[p + 4] = _mm512_and_si512(_mm512_srli_epi16(v, 4), low);
    }
  } else {
#pragma GCC unroll 8
    for (int g = 0; g < 8; ++g) w[g] = _mm512_and_si512(_mm512_srli_epi16(_mm512_loadu_si512(tile + (g & 1) * 64), (g >> 1) * 2), two);
  }
  const uint8_t* top = tile + form.low * 64;
  if constexpr (form.high == 1) {
    const __m512i bit = _mm512_set1_epi8(1 << form.low);
#pragma GCC unroll 8
    for (int g = 0; g < 8; ++g) {
      uint64_t mask;
      memcpy(&mask, top + g * 8, 8);
      w[g] = _mm512_mask_add_epi8(w[g], mask, w[g], bit);
    }
  } else if constexpr (form.high == 2) {
    const __m512i bits = _mm512_set1_epi8(0x30);
#pragma GCC unroll 8
    for (int g = 0; g < 8; ++g) {
      const __m512i v = _mm512_loadu_si512(top + (g & 1) * 64);
      const __m512i placed = g >> 1 == 0 ? _mm512_slli_epi16(v, 4) : (g >> 1 == 1 ? _mm512_slli_epi16(v, 2) : _mm512_srli_epi16(v, (g >> 1) * 2 - 4));
      w[g] = _mm512_or_si512(w[g], _mm512_and_si512(placed, bits));
    }
  }
}

LLMX_INLINE __m512i bcast32(const int8_t* p) {
  int32_t v;
  memcpy(&v, p, 4);
  return _mm512_set1_epi32(v);
}

// sum[j] += weights * the row's bytes, lines [First, First + Count), for G rows.
template <int G, int Count>
LLMX_INLINE void dot_rows(const __m512i* w, const int8_t (*q)[kBlock], int first, __m512i* sum) {
#pragma GCC unroll 8
  for (int g = 0; g < Count; ++g) {
#pragma GCC unroll 4
    for (int j = 0; j < G; ++j) sum[j] = _mm512_dpbusd_epi32(sum[j], w[first + g], bcast32(&q[j][(first + g) * 4]));
  }
}

// acc[r] += the products under one scale of one 32-k block, for the MR rows of a tile; G rows at a time keep G integer chains in
// flight. Without the low plane (Planes 2, not Fine) the weight's scale takes the factor 256.
template <WeightType T, int MR, int Planes, bool Fine>
LLMX_INLINE void block_int(const ActBlock<Planes>* act, const __m512i* w, int sub, __m512 scale, __m512* acc) {
  using Q = Quant<T>;
  constexpr int G = MR % 4 == 0 ? 4 : (MR % 3 == 0 ? 3 : MR), kCount = 8 / Q::kSubs;
  auto zero_point = [&](int row) {  // n is a multiple of 256 where two planes hold int8
    const __m512i n = _mm512_set1_epi32(minus_sum<T>(act, sub, row));
    if constexpr (Planes == 2 && !Fine) return _mm512_srai_epi32(n, 8 - Q::kZeroShift);
    return _mm512_slli_epi32(n, Q::kZeroShift);
  };
#pragma GCC unroll 16
  for (int r0 = 0; r0 < MR; r0 += G) {
    __m512i sum[G];
    if constexpr (Fine) {
#pragma GCC unroll 4
      for (int j = 0; j < G; ++j) sum[j] = _mm512_setzero_si512();
      dot_rows<G, kCount>(w, act->q[0] + r0, sub * kCount, sum);
#pragma GCC unroll 4
      for (int j = 0; j < G; ++j) {
        sum[j] = _mm512_slli_epi32(sum[j], 8);
        if (!Q::kMinimum) sum[j] = _mm512_add_epi32(sum[j], zero_point(r0 + j));
      }
    } else {
#pragma GCC unroll 4
      for (int j = 0; j < G; ++j) sum[j] = Q::kMinimum ? _mm512_setzero_si512() : zero_point(r0 + j);
    }
    dot_rows<G, kCount>(w, act->q[Fine ? Planes - 1 : 0] + r0, sub * kCount, sum);
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
    const uint8_t* group = base + b / Q::kBlocks * Q::kForm.group();
    const int block = static_cast<int>(b % Q::kBlocks);
    __m512i w[8];
    unpack_tile<T>(group + Q::kForm.tile_at(block), w);
    if constexpr (MR >= 6) {  // the next panel's bytes come while this one computes; with fewer rows it costs more than it gives
      constexpr int kStep = Q::kForm.group() / Q::kBlocks;
      const uint8_t* next = group + args.weight->panel_bytes + block * kStep;
#pragma GCC unroll 10
      for (int i = 0; i < kStep; i += 64) _mm_prefetch(reinterpret_cast<const char*>(next + i), _MM_HINT_T0);
    }
#pragma GCC unroll 2
    for (int sub = 0; sub < Q::kSubs; ++sub) {
      const __m512 d = scale_of<T>(group, block, sub, 0).v;
      if (Planes == 2 && act->fine) {
        block_int<T, MR, Planes, true>(act, w, sub, d, acc);
      } else {
        block_int<T, MR, Planes, false>(act, w, sub, Planes == 2 ? _mm512_mul_ps(d, _mm512_set1_ps(256.0f)) : d, acc);
      }
    }
    if constexpr (Q::kMinimum) {
#pragma GCC unroll 2
      for (int sub = 0; sub < Q::kSubs; ++sub) {
        const __m512 m = scale_of<T>(group, block, sub, 1).v;
#pragma GCC unroll 16
        for (int r = 0; r < MR; ++r) acc[r] = _mm512_fmadd_ps(m, _mm512_set1_ps(scaled_sum<T>(act, sub, r)), acc[r]);
      }
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

// Lines of eight channels (bytes 0 to 31 or 32 to 63 of each line).
template <WeightType T, int Half>
LLMX_INLINE void unpack_half(const uint8_t* tile, __m256i* w) {
  constexpr QuantForm form = quant_form(T);
  const __m256i low = _mm256_set1_epi8(15), two = _mm256_set1_epi8(3);
  auto line = [](const uint8_t* from, int index) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + index * 64 + Half * 32)); };
  for (int g = 0; g < 8; ++g) {
    if constexpr (form.low == 8) w[g] = line(tile, g);
    if constexpr (form.low == 4) w[g] = _mm256_and_si256(g < 4 ? line(tile, g) : _mm256_srli_epi16(line(tile, g - 4), 4), low);
    if constexpr (form.low == 2) w[g] = _mm256_and_si256(_mm256_srli_epi16(line(tile, g & 1), (g >> 1) * 2), two);
  }
  const uint8_t* top = tile + form.low * 64;
  if constexpr (form.high == 1) {
    const __m256i spread = _mm256_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3);
    const __m256i which = _mm256_set1_epi64x(static_cast<int64_t>(0x8040201008040201ull)), bit = _mm256_set1_epi8(1 << form.low);
    for (int g = 0; g < 8; ++g) {
      int32_t bits;
      memcpy(&bits, top + g * 8 + Half * 4, 4);
      const __m256i bytes = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32(bits), spread), which);
      w[g] = _mm256_or_si256(w[g], _mm256_and_si256(_mm256_cmpeq_epi8(bytes, which), bit));
    }
  } else if constexpr (form.high == 2) {
    for (int g = 0; g < 8; ++g) {
      const __m256i v = _mm256_and_si256(_mm256_srli_epi16(line(top, g & 1), (g >> 1) * 2), two);
      w[g] = _mm256_or_si256(w[g], _mm256_slli_epi16(v, 4));
    }
  }
}

// Sums of eight channels under one scale for one row. Products of codes and int8 are added in 16 bits as long as they fit:
// 2 * kSteps * code * 128 < 2^15. An 8-bit code is two nibbles.
template <WeightType T>
LLMX_INLINE __m256i dot_half(const __m256i* w, const int8_t* q, int sub) {
  constexpr QuantForm form = quant_form(T);
  constexpr int kBits = form.low + form.high, kCount = 8 / form.subs;
  constexpr int kSteps = kBits == 6 ? 2 : (kBits == 5 ? 4 : kCount);
  const __m256i ones = _mm256_set1_epi16(1), low = _mm256_set1_epi8(15);
  auto bcast = [](const int8_t* p) {
    int32_t v;
    memcpy(&v, p, 4);
    return _mm256_set1_epi32(v);
  };
  __m256i sum = _mm256_setzero_si256();
  for (int g = sub * kCount; g < (sub + 1) * kCount; g += kSteps) {
    __m256i first = _mm256_setzero_si256(), second = _mm256_setzero_si256();
    for (int i = g; i < g + kSteps; ++i) {
      const __m256i a = bcast(q + i * 4);
      if constexpr (form.low == 8) {
        first = _mm256_add_epi16(first, _mm256_maddubs_epi16(_mm256_and_si256(w[i], low), a));
        second = _mm256_add_epi16(second, _mm256_maddubs_epi16(_mm256_and_si256(_mm256_srli_epi16(w[i], 4), low), a));
      } else {
        first = _mm256_add_epi16(first, _mm256_maddubs_epi16(w[i], a));
      }
    }
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(first, ones));
    if constexpr (form.low == 8) sum = _mm256_add_epi32(sum, _mm256_slli_epi32(_mm256_madd_epi16(second, ones), 4));
  }
  return sum;
}

template <int Half>
LLMX_INLINE __m256 half_of(F16 a) {
  return Half ? a.hi : a.lo;
}

template <WeightType T, int MR, int Planes, int Half>
static void half_int(const GemmArgs& args, int64_t panel, int64_t tile, int row, float out[][kPanel]) {
  using Q = Quant<T>;
  const uint8_t* base = args.weight->data + panel * args.weight->panel_bytes;
  const ActBlock<Planes>* act = static_cast<const ActBlock<Planes>*>(args.act) + tile * args.ld;
  __m256 acc[MR];
  for (int r = 0; r < MR; ++r) acc[r] = _mm256_setzero_ps();
  for (int64_t b = 0; b < args.ld; ++b, ++act) {
    const uint8_t* group = base + b / Q::kBlocks * Q::kForm.group();
    const int block = static_cast<int>(b % Q::kBlocks);
    __m256i w[8];
    unpack_half<T, Half>(group + Q::kForm.tile_at(block), w);
    for (int sub = 0; sub < Q::kSubs; ++sub) {
      const __m256 d = half_of<Half>(scale_of<T>(group, block, sub, 0));
#pragma GCC unroll 4
      for (int r = 0; r < MR; ++r) {
        __m256i whole = dot_half<T>(w, act->q[0][row + r], sub);
        if constexpr (Planes == 2) {
          whole = _mm256_slli_epi32(whole, 8);
          if (act->fine) whole = _mm256_add_epi32(whole, dot_half<T>(w, act->q[1][row + r], sub));
        }
        if constexpr (!Q::kMinimum) whole = _mm256_add_epi32(whole, _mm256_set1_epi32(minus_sum<T>(act, sub, row + r) * (1 << Q::kZeroShift)));
        acc[r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(whole), _mm256_mul_ps(d, _mm256_set1_ps(act->d[row + r])), acc[r]);
      }
    }
    for (int sub = 0; Q::kMinimum && sub < Q::kSubs; ++sub) {
      const __m256 m = half_of<Half>(scale_of<T>(group, block, sub, 1));
#pragma GCC unroll 4
      for (int r = 0; r < MR; ++r) acc[r] = _mm256_fmadd_ps(m, _mm256_set1_ps(scaled_sum<T>(act, sub, row + r)), acc[r]);
    }
  }
  for (int r = 0; r < MR; ++r) _mm256_storeu_ps(out[r] + Half * 8, acc[r]);
}

template <WeightType T, int Planes>
static void tile_int(const GemmArgs& args, int64_t panel, int64_t tile, int64_t rows) {
  float out[4][kPanel];
  int row = 0;
  for (; row + 4 <= rows; row += 4) {
    half_int<T, 4, Planes, 0>(args, panel, tile, row, out);
    half_int<T, 4, Planes, 1>(args, panel, tile, row, out);
    for (int r = 0; r < 4; ++r) store_row(args, tile * kTileRows + row + r, panel, load(out[r]));
  }
  for (; row < rows; ++row) {
    half_int<T, 1, Planes, 0>(args, panel, tile, row, out);
    half_int<T, 1, Planes, 1>(args, panel, tile, row, out);
    store_row(args, tile * kTileRows + row, panel, load(out[0]));
  }
}

#else

using Codes = uint8_t[8][64];  // lines of a tile, one code per byte

template <WeightType T>
LLMX_INLINE void unpack_tile(const uint8_t* tile, Codes w) {
  constexpr QuantForm form = quant_form(T);
  for (int g = 0; g < 8; ++g) {
    for (int i = 0; i < 64; ++i) {
      int code = form.low == 8 ? tile[g * 64 + i] : (form.low == 4 ? tile[(g & 3) * 64 + i] >> (g >> 2) * 4 & 15 : tile[(g & 1) * 64 + i] >> (g >> 1) * 2 & 3);
      if (form.high == 1) code |= (tile[form.low * 64 + g * 8 + i / 8] >> (i & 7) & 1) << form.low;
      if (form.high == 2) code |= (tile[form.low * 64 + (g & 1) * 64 + i] >> (g >> 1) * 2 & 3) << form.low;
      w[g][i] = static_cast<uint8_t>(code);
    }
  }
}

template <WeightType T>
LLMX_INLINE void dot_tile(const Codes w, const int8_t* q, int sub, int32_t* sum) {
  constexpr int kCount = 8 / Quant<T>::kSubs;
  for (int g = sub * kCount; g < (sub + 1) * kCount; ++g) {
    for (int c = 0; c < kPanel; ++c) {
      for (int j = 0; j < 4; ++j) sum[c] += w[g][c * 4 + j] * q[g * 4 + j];
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
    const uint8_t* group = base + b / Q::kBlocks * Q::kForm.group();
    const int block = static_cast<int>(b % Q::kBlocks);
    Codes w;
    unpack_tile<T>(group + Q::kForm.tile_at(block), w);
    for (int sub = 0; sub < Q::kSubs; ++sub) {
      const F16 d = scale_of<T>(group, block, sub, 0);
      for (int64_t r = 0; r < rows; ++r) {
        int32_t sum[kPanel] = {0};
        float whole[kPanel];
        dot_tile<T>(w, act->q[0][r], sub, sum);
        if constexpr (Planes == 2) {
          for (int c = 0; c < kPanel; ++c) sum[c] *= 256;
          if (act->fine) dot_tile<T>(w, act->q[1][r], sub, sum);
        }
        const int32_t zero_point = Q::kMinimum ? 0 : minus_sum<T>(act, sub, r) * (1 << Q::kZeroShift);
        for (int c = 0; c < kPanel; ++c) whole[c] = static_cast<float>(sum[c] + zero_point);
        acc[r] = fma(load(whole), mul(d, set1(act->d[r])), acc[r]);
      }
    }
    for (int sub = 0; Q::kMinimum && sub < Q::kSubs; ++sub) {
      const F16 m = scale_of<T>(group, block, sub, 1);
      for (int64_t r = 0; r < rows; ++r) acc[r] = fma(m, set1(scaled_sum<T>(act, sub, r)), acc[r]);
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

template <WeightType T>
static void either_int(const GemmArgs& args, int64_t panel_begin, int64_t panel_end) {
  return args.weight->act == ActType::i8 ? gemm_int<T, 1>(args, panel_begin, panel_end) : gemm_int<T, 2>(args, panel_begin, panel_end);
}

}  // namespace LLMX_NS
}  // namespace llmx
