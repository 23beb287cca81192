// Integer products with AVX-512 VNNI; part of linear_int_impl.h.
#pragma once

namespace llmx {
namespace LLMX_NS {


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

}  // namespace LLMX_NS
}  // namespace llmx
