// Integer products in plain C++; part of linear_int_impl.h.
#pragma once

namespace llmx {
namespace LLMX_NS {


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

}  // namespace LLMX_NS
}  // namespace llmx
