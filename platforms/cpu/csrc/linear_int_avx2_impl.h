// Integer products with AVX2, up to six rows at a time: their twelve 16-bit sums, two lines and one activation fill the sixteen
// registers. Part of linear_int_impl.h. A line of a tile is two halves of eight channels. Products of codes and
// int8 are added in 16 bits as long as they fit (vpmaddubsw), then widened; the f32 sums of a group of rows lie in L1.
//
// Few rows unpack a tile as they read it. With more rows a run of tiles is opened once into L1 (codes as bytes, scales as f32)
// and all rows walk over it: the same integers and the same scales, so the same bits.
#pragma once

namespace llmx {
namespace LLMX_NS {

constexpr int kRowsOpen = 64;     // rows that share an opened run
constexpr int kOpenBlocks = 8;    // blocks of a run
constexpr int kFewRows = 4;       // fewer read a panel in less time than memory takes to answer, so their weights are asked for
constexpr int kFewAhead = 2560;   // this many bytes ahead; with more rows a whole panel ahead
constexpr int kOpenFrom = 13;     // rows from which opening pays

// 2 * kSteps * code * 128 < 2^15. An 8-bit code is two nibbles.
template <WeightType T>
struct Sum16 {
  static constexpr QuantForm kForm = quant_form(T);
  static constexpr int kBits = kForm.low + kForm.high, kCount = 8 / kForm.subs;
  static constexpr int kSteps = kBits == 6 ? 2 : (kBits == 5 ? 4 : kCount);
  static constexpr int kNibbles = kForm.low == 8 ? 2 : 1;
};

LLMX_INLINE __m256i line_half(const uint8_t* lines, int index, int half) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(lines + index * 64 + half * 32));
}

// Codes of line g of a packed tile, one half; of 8-bit codes one nibble.
template <WeightType T>
LLMX_INLINE __m256i packed_line(const uint8_t* tile, int g, int half, int nibble) {
  constexpr QuantForm form = quant_form(T);
  const __m256i low = _mm256_set1_epi8(15), two = _mm256_set1_epi8(3);
  const uint8_t* top = tile + form.low * 64;
  __m256i w;
  if constexpr (form.low == 8) {
    const __m256i v = line_half(tile, g, half);
    return _mm256_and_si256(nibble ? _mm256_srli_epi16(v, 4) : v, low);
  } else if constexpr (form.low == 4) {
    w = _mm256_and_si256(g < 4 ? line_half(tile, g, half) : _mm256_srli_epi16(line_half(tile, g - 4, half), 4), low);
  } else {
    w = _mm256_and_si256(_mm256_srli_epi16(line_half(tile, g & 1, half), (g >> 1) * 2), two);
  }
  if constexpr (form.high == 1) {
    const __m256i spread = _mm256_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3);
    const __m256i which = _mm256_set1_epi64x(static_cast<int64_t>(0x8040201008040201ull)), bit = _mm256_set1_epi8(1 << form.low);
    int32_t bits;
    memcpy(&bits, top + g * 8 + half * 4, 4);
    const __m256i bytes = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32(bits), spread), which);
    w = _mm256_or_si256(w, _mm256_and_si256(_mm256_cmpeq_epi8(bytes, which), bit));
  } else if constexpr (form.high == 2) {
    const __m256i v = line_half(top, g & 1, half), bits = _mm256_set1_epi8(0x30);
    const __m256i placed = g >> 1 == 0 ? _mm256_slli_epi16(v, 4) : (g >> 1 == 1 ? _mm256_slli_epi16(v, 2) : _mm256_srli_epi16(v, (g >> 1) * 2 - 4));
    w = _mm256_or_si256(w, _mm256_and_si256(placed, bits));
  }
  return w;
}

// Where a kernel reads the weights of one block from, and how many lines of memory it asks for meanwhile.
template <WeightType T>
struct PackedBlock {
  const uint8_t* group;
  int block;
  static constexpr int kBlocks = quant_form(T).blocks();
  static constexpr int kAhead = (quant_form(T).group() / kBlocks + 63) / 64;
  LLMX_INLINE PackedBlock at(const uint8_t* panel, int64_t b) { return {panel + b / kBlocks * quant_form(T).group(), static_cast<int>(b % kBlocks)}; }
  LLMX_INLINE __m256i line(const PackedBlock& p, int g, int half, int nibble) {
    return packed_line<T>(p.group + quant_form(T).tile_at(p.block), g, half, nibble);
  }
  LLMX_INLINE F16 scale(const PackedBlock& p, int sub, int part) { return scale_of<T>(p.group, p.block, sub, part); }
};

template <WeightType T>
struct alignas(64) OpenTile {
  static constexpr int kLines = 8 * Sum16<T>::kNibbles;
  uint8_t lines[kLines][64];
  float scales[quant_form(T).subs][quant_form(T).parts()][kPanel];
};

template <WeightType T>
struct OpenBlock {
  const OpenTile<T>* tile;
  static constexpr int kAhead = 1;
  LLMX_INLINE OpenBlock at(const OpenTile<T>* run, int64_t b) { return {run + b}; }
  LLMX_INLINE __m256i line(const OpenBlock& p, int g, int half, int nibble) { return line_half(p.tile->lines[0], nibble * 8 + g, half); }
  LLMX_INLINE F16 scale(const OpenBlock& p, int sub, int part) { return load(p.tile->scales[sub][part]); }
};

template <WeightType T>
static void open_run(const uint8_t* panel, int64_t first, int64_t count, OpenTile<T>* run) {
  using Q = Quant<T>;
  for (int64_t b = first; b < first + count; ++b, ++run) {
    const PackedBlock<T> block = PackedBlock<T>::at(panel, b);
#pragma GCC unroll 16
    for (int i = 0; i < OpenTile<T>::kLines; ++i) {
      for (int half = 0; half < 2; ++half)
        _mm256_store_si256(reinterpret_cast<__m256i*>(run->lines[i] + half * 32), PackedBlock<T>::line(block, i & 7, half, i >> 3));
    }
    for (int sub = 0; sub < Q::kSubs; ++sub) {
      for (int part = 0; part < Q::kForm.parts(); ++part) store(run->scales[sub][part], scale_of<T>(block.group, block.block, sub, part));
    }
  }
}

LLMX_INLINE __m256i bcast32(const int8_t* p) {
  int32_t v;
  memcpy(&v, p, 4);
  return _mm256_set1_epi32(v);
}

// The compiler would make trees of the integer sums, for which there are not enough registers.
LLMX_INLINE void in_order(__m256i& sum) { __asm__("" : "+x"(sum)); }

// whole[r][half] = products of the lines of one scale with one plane of MR rows, exact.
template <WeightType T, int MR, class Source>
LLMX_INLINE void dot_rows(const Source& source, const int8_t (*q)[kBlock], int sub, int nibble, __m256i whole[MR][2]) {
  using S = Sum16<T>;
  const __m256i ones = _mm256_set1_epi16(1);
#pragma GCC unroll 8
  for (int first = 0; first < S::kCount; first += S::kSteps) {
    __m256i sum[MR][2];
#pragma GCC unroll 8
    for (int i = 0; i < S::kSteps; ++i) {
      const int g = sub * S::kCount + first + i;
      const __m256i w0 = Source::line(source, g, 0, nibble), w1 = Source::line(source, g, 1, nibble);
#pragma GCC unroll 8
      for (int r = 0; r < MR; ++r) {
        const __m256i a = bcast32(&q[r][g * 4]);
        const __m256i p0 = _mm256_maddubs_epi16(w0, a), p1 = _mm256_maddubs_epi16(w1, a);
        sum[r][0] = i ? _mm256_add_epi16(sum[r][0], p0) : p0;
        sum[r][1] = i ? _mm256_add_epi16(sum[r][1], p1) : p1;
        in_order(sum[r][0]);
        in_order(sum[r][1]);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < MR; ++r) {
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half) {
        const __m256i wide = _mm256_madd_epi16(sum[r][half], ones);
        whole[r][half] = first ? _mm256_add_epi32(whole[r][half], wide) : wide;
      }
    }
  }
}

// The same over both nibbles of 8-bit codes.
template <WeightType T, int MR, class Source>
LLMX_INLINE void dot_codes(const Source& source, const int8_t (*q)[kBlock], int sub, __m256i whole[MR][2]) {
  if constexpr (Sum16<T>::kNibbles == 1) {
    dot_rows<T, MR>(source, q, sub, 0, whole);
  } else {
    __m256i high[MR][2];
    dot_rows<T, MR>(source, q, sub, 1, high);
    dot_rows<T, MR>(source, q, sub, 0, whole);
#pragma GCC unroll 8
    for (int r = 0; r < MR; ++r) {
      for (int half = 0; half < 2; ++half) whole[r][half] = _mm256_add_epi32(_mm256_slli_epi32(high[r][half], 4), whole[r][half]);
    }
  }
}

// acc[r] += the products under one scale of one block. Without the low plane (Planes 2, not Fine) the weight's scale takes the
// factor 256, and n is a multiple of it.
template <WeightType T, int MR, int Planes, bool Fine, class Source>
LLMX_INLINE void block_int(const Source& source, const ActBlock<Planes>* act, int sub, int row, float (*acc)[kPanel]) {
  using Q = Quant<T>;
  constexpr bool kScaled = Planes == 2 && !Fine, kFused = Q::kMinimum && Q::kSubs == 1;
  __m256i whole[MR][2];
  dot_codes<T, MR>(source, act->q[0] + row, sub, whole);
  if constexpr (Fine) {
    __m256i low[MR][2];
    dot_codes<T, MR>(source, act->q[Planes - 1] + row, sub, low);
#pragma GCC unroll 8
    for (int r = 0; r < MR; ++r) {
      for (int half = 0; half < 2; ++half) whole[r][half] = _mm256_add_epi32(_mm256_slli_epi32(whole[r][half], 8), low[r][half]);
    }
  }
  F16 d = Source::scale(source, sub, 0), m;
  if constexpr (kScaled) d = mul(d, set1(256.0f));
  if constexpr (kFused) m = Source::scale(source, 0, 1);
#pragma GCC unroll 8
  for (int r = 0; r < MR; ++r) {
    const __m256 da = _mm256_set1_ps(act->d[row + r]);
    F16 sum = load(acc[r]);
    if constexpr (!Q::kMinimum) {
      const int32_t n = minus_sum<T>(act, sub, row + r);
      const __m256i zero_point = _mm256_set1_epi32((kScaled ? n / 256 : n) * (1 << Q::kZeroShift));
      whole[r][0] = _mm256_add_epi32(whole[r][0], zero_point);
      whole[r][1] = _mm256_add_epi32(whole[r][1], zero_point);
    }
    sum.lo = _mm256_fmadd_ps(_mm256_cvtepi32_ps(whole[r][0]), _mm256_mul_ps(d.lo, da), sum.lo);
    sum.hi = _mm256_fmadd_ps(_mm256_cvtepi32_ps(whole[r][1]), _mm256_mul_ps(d.hi, da), sum.hi);
    if constexpr (kFused) sum = fma(m, set1(act->s[row + r]), sum);
    store(acc[r], sum);
  }
}

// acc[r] += what `blocks` blocks give, for rows [row, row + MR) of a tile of activations. ahead: weights that come next.
template <WeightType T, int MR, int Planes, class Source, class Weights>
static void rows_int(const Weights* weights, const uint8_t* ahead, const ActBlock<Planes>* act, int64_t blocks, int row, float (*acc)[kPanel]) {
  using Q = Quant<T>;
  constexpr int32_t kRows = (1 << MR) - 1;
  for (int64_t b = 0; b < blocks; ++b, ++act) {
    const Source source = Source::at(weights, b);
#pragma GCC unroll 16
    for (int i = 0; i < Source::kAhead; ++i, ahead += 64) _mm_prefetch(reinterpret_cast<const char*>(ahead), _MM_HINT_T0);
#pragma GCC unroll 2
    for (int sub = 0; sub < Q::kSubs; ++sub) {
      if (Planes == 2 && (act->fine >> row & kRows)) {
        block_int<T, MR, Planes, true>(source, act, sub, row, acc);
      } else {
        block_int<T, MR, Planes, false>(source, act, sub, row, acc);
      }
    }
    if constexpr (Q::kMinimum && Q::kSubs > 1) {
      const F16 m[2] = {Source::scale(source, 0, 1), Source::scale(source, 1, 1)};
#pragma GCC unroll 8
      for (int r = 0; r < MR; ++r) {
        F16 sum = fma(m[0], set1(scaled_sum<T>(act, 0, row + r)), load(acc[r]));
        store(acc[r], fma(m[1], set1(scaled_sum<T>(act, 1, row + r)), sum));
      }
    }
  }
}

// Rows [0, rows) of one tile of activations as they lie packed; a tile has room for sixteen rows, so a group may compute more than
// there are.
template <WeightType T, int Planes>
static void few_rows(const uint8_t* panel, const uint8_t* ahead, const ActBlock<Planes>* act, int64_t blocks, int64_t rows, float (*acc)[kPanel]) {
  using Source = PackedBlock<T>;
  for (int row = 0, take; row < rows; row += take) {
    const int64_t left = rows - row;
    if (left > 8 || left == 5 || left == 6) {
      take = 6;
      rows_int<T, 6, Planes, Source>(panel, ahead, act, blocks, row, acc + row);
    } else if (left > 2) {
      take = 4;
      rows_int<T, 4, Planes, Source>(panel, ahead, act, blocks, row, acc + row);
    } else if (left == 2) {
      take = 2;
      rows_int<T, 2, Planes, Source>(panel, ahead, act, blocks, row, acc + row);
    } else {
      take = 1;
      rows_int<T, 1, Planes, Source>(panel, ahead, act, blocks, row, acc + row);
    }
  }
}

// Any number of rows over one opened run. Four at a time: sixteen divides by it, and few of four rows' blocks need their low plane.
template <WeightType T, int Planes>
static void open_rows(const OpenTile<T>* run, const uint8_t* ahead, int64_t ahead_bytes, const ActBlock<Planes>* act, int64_t ld, int64_t blocks, int64_t rows,
                      float (*acc)[kPanel]) {
  int64_t asked = 0;
  for (int64_t row = 0; row < rows; row += 4) {
    rows_int<T, 4, Planes, OpenBlock<T>>(run, ahead + asked, act + row / kTileRows * ld, blocks, static_cast<int>(row % kTileRows), acc + row);
    asked += 64 * blocks;
    if (asked >= ahead_bytes) asked = 0;
  }
}

template <WeightType T, int Planes>
static void panel_int(const GemmArgs& args, int64_t panel, int64_t tile, int64_t rows) {
  const uint8_t* base = args.weight->data + panel * args.weight->panel_bytes;
  const int64_t blocks = args.ld;
  const auto* act = static_cast<const ActBlock<Planes>*>(args.act) + tile * blocks;
  alignas(64) float acc[kRowsOpen + kTileRows][kPanel];
  memset(acc, 0, static_cast<size_t>((rows + kTileRows - 1) / kTileRows * kTileRows) * sizeof(acc[0]));
  if (rows < kOpenFrom) {
    few_rows<T, Planes>(base, base + (rows < kFewRows ? kFewAhead : args.weight->panel_bytes), act, blocks, rows, acc);
  } else {
    OpenTile<T> run[kOpenBlocks];
    for (int64_t b = 0; b < blocks; b += kOpenBlocks) {
      const int64_t count = blocks - b < kOpenBlocks ? blocks - b : kOpenBlocks;
      open_run<T>(base, b, count, run);
      constexpr int64_t kBytes = quant_form(T).group() / quant_form(T).blocks();  // the run after this one comes meanwhile
      open_rows<T, Planes>(run, base + (b + count) * kBytes, kOpenBlocks * kBytes, act + b, blocks, count, rows, acc);
    }
  }
  for (int64_t r = 0; r < rows; ++r) store_row(args, tile * kTileRows + r, panel, load(acc[r]));
}

}  // namespace LLMX_NS
}  // namespace llmx

#include "linear_words_avx2_impl.h"  // reads PackedBlock and bcast32

namespace llmx {
namespace LLMX_NS {

template <WeightType T, int Planes>
static void gemm_int(const GemmArgs& args, int64_t panel_begin, int64_t panel_end) {
  if constexpr (Sum16<T>::kNibbles == 2) {
    if (args.m >= kWordsFrom) return gemm_words<T, Planes>(args, panel_begin, panel_end);
  }
  for (int64_t row = 0; row < args.m; row += kRowsOpen) {
    const int64_t rows = args.m - row < kRowsOpen ? args.m - row : kRowsOpen;
    for (int64_t p = panel_begin; p < panel_end; ++p) panel_int<T, Planes>(args, p, row / kTileRows, rows);
  }
}

}  // namespace LLMX_NS
}  // namespace llmx
