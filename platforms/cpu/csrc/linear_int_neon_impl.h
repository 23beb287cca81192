// Integer products with NEON's dot products; part of linear_int_impl.h. sdot multiplies signed bytes by signed bytes: codes of up
// to six bits are signed as they are, those of eight lose their zero point as they are unpacked.
#pragma once

namespace llmx {
namespace LLMX_NS {

struct Tile {  // a line of 64 bytes is four registers of four channels
  int8x16_t line[8][4];
};

// The bits of the code above the low ones, in their places: line g, channels 4 c to 4 c + 3.
template <WeightType T>
LLMX_INLINE uint8x16_t high_bits(const uint8_t* top, int g, int c) {
  constexpr QuantForm form = quant_form(T);
  if constexpr (form.high == 1) {
    const uint8x16_t bit = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
    const uint8_t* two = top + g * 8 + c * 2;
    return vandq_u8(vtstq_u8(vcombine_u8(vdup_n_u8(two[0]), vdup_n_u8(two[1])), bit), vdupq_n_u8(1 << form.low));
  }
  const uint8x16_t shifted = vshlq_u8(vld1q_u8(top + (g & 1) * 64 + c * 16), vdupq_n_s8(static_cast<int8_t>(-2 * (g >> 1))));
  return vshlq_n_u8(vandq_u8(shifted, vdupq_n_u8(3)), 4);  // of q6_K, the only type with two
}

template <WeightType T>
LLMX_INLINE void unpack_tile(const uint8_t* tile, Tile* w) {
  constexpr QuantForm form = quant_form(T);
  const uint8_t* top = tile + form.low * 64;
#pragma GCC unroll 8
  for (int g = 0; g < 8; ++g) {
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) {
      uint8x16_t code;
      if constexpr (form.low == 8) {
        code = veorq_u8(vld1q_u8(tile + g * 64 + c * 16), vdupq_n_u8(0x80));
      } else if constexpr (form.low == 4) {
        const uint8x16_t v = vld1q_u8(tile + (g & 3) * 64 + c * 16);
        code = g < 4 ? vandq_u8(v, vdupq_n_u8(15)) : vshrq_n_u8(v, 4);
      } else {
        const uint8x16_t v = vld1q_u8(tile + (g & 1) * 64 + c * 16);
        code = vandq_u8(vshlq_u8(v, vdupq_n_s8(static_cast<int8_t>(-2 * (g >> 1)))), vdupq_n_u8(3));
      }
      if constexpr (form.high > 0) code = vorrq_u8(code, high_bits<T>(top, g, c));
      w->line[g][c] = vreinterpretq_s8_u8(code);
    }
  }
}

// sum[j] += four lines from `first` times sixteen bytes of each of G rows.
template <int G>
LLMX_INLINE void dot_lines(const Tile& w, const int8_t (*q)[kBlock], int first, int32x4_t (*sum)[4]) {
  int8x16_t a[G];
#pragma GCC unroll 4
  for (int j = 0; j < G; ++j) a[j] = vld1q_s8(q[j] + first * 4);
#define LLMX_LINE(lane)                                                                                          \
  _Pragma("GCC unroll 4") for (int c = 0; c < 4; ++c) {                                                           \
    const int8x16_t line = w.line[first + lane][c];                                                              \
    _Pragma("GCC unroll 4") for (int j = 0; j < G; ++j) sum[j][c] = vdotq_laneq_s32(sum[j][c], line, a[j], lane); \
  }
  LLMX_LINE(0)
  LLMX_LINE(1)
  LLMX_LINE(2)
  LLMX_LINE(3)
#undef LLMX_LINE
}

// acc[j] += the products under one scale of one block, for G rows from `row`.
template <WeightType T, int G, int Planes>
LLMX_INLINE void block_int(const ActBlock<Planes>* act, const Tile& w, int sub, F16 scale, int row, F16* acc) {
  using Q = Quant<T>;
  constexpr int kLines = 8 / Q::kSubs;
  int32x4_t sum[G][4];
#pragma GCC unroll 4
  for (int j = 0; j < G; ++j) {
    for (int c = 0; c < 4; ++c) sum[j][c] = vdupq_n_s32(0);
  }
  for (int first = sub * kLines; first < (sub + 1) * kLines; first += 4) dot_lines<G>(w, act->q[0] + row, first, sum);
  if constexpr (Planes == 2) {
#pragma GCC unroll 4
    for (int j = 0; j < G; ++j) {
      for (int c = 0; c < 4; ++c) sum[j][c] = vshlq_n_s32(sum[j][c], 8);
    }
    if (act->fine >> row & ((1 << G) - 1)) {
      for (int first = sub * kLines; first < (sub + 1) * kLines; first += 4) dot_lines<G>(w, act->q[1] + row, first, sum);
    }
  }
#pragma GCC unroll 4
  for (int j = 0; j < G; ++j) {
    const bool zero_point = !Q::kMinimum && Q::kForm.low < 8;
    const int32x4_t n = vdupq_n_s32(zero_point ? minus_sum<T>(act, sub, row + j) * (1 << Q::kZeroShift) : 0);
    const F16 d = mul(scale, set1(act->d[row + j]));
    F16 whole;
    for (int c = 0; c < 4; ++c) whole.v[c] = vcvtq_f32_s32(zero_point ? vaddq_s32(sum[j][c], n) : sum[j][c]);
    acc[j] = fma(whole, d, acc[j]);
  }
}

template <WeightType T, int Planes>
static void tile_int(const GemmArgs& args, int64_t panel, int64_t tile, int64_t rows) {
  using Q = Quant<T>;
  const uint8_t* base = args.weight->data + panel * args.weight->panel_bytes;
  const ActBlock<Planes>* act = static_cast<const ActBlock<Planes>*>(args.act) + tile * args.ld;
  F16 acc[kTileRows];  // whole groups of rows: a group may compute more than there are
  for (int r = 0; r < kTileRows; ++r) acc[r] = zero();
  for (int64_t b = 0; b < args.ld; ++b, ++act) {
    const uint8_t* group = base + b / Q::kBlocks * Q::kForm.group();
    const int block = static_cast<int>(b % Q::kBlocks);
    Tile w;
    unpack_tile<T>(group + Q::kForm.tile_at(block), &w);
    for (int sub = 0; sub < Q::kSubs; ++sub) {
      const F16 d = scale_of<T>(group, block, sub, 0);
      for (int row = 0; row < rows; row += 4) {
        if (rows - row > 2) {
          block_int<T, 4, Planes>(act, w, sub, d, row, acc + row);
        } else if (rows - row == 2) {
          block_int<T, 2, Planes>(act, w, sub, d, row, acc + row);
        } else {
          block_int<T, 1, Planes>(act, w, sub, d, row, acc + row);
        }
      }
    }
    for (int sub = 0; Q::kMinimum && sub < Q::kSubs; ++sub) {
      const F16 m = scale_of<T>(group, block, sub, 1);
      for (int64_t r = 0; r < rows; ++r) acc[r] = fma(m, set1(scaled_sum<T>(act, sub, r)), acc[r]);
    }
  }
  for (int64_t r = 0; r < rows; ++r) store_row(args, tile * kTileRows + r, panel, acc[r]);
}

}  // namespace LLMX_NS
}  // namespace llmx
