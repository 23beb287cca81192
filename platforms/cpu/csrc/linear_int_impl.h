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

}  // namespace LLMX_NS
}  // namespace llmx

#if LLMX_LEVEL == 3
#include "linear_int_neon_impl.h"
#elif LLMX_LEVEL == 2
#include "linear_int_avx512_impl.h"
#elif LLMX_LEVEL == 1
#include "linear_int_avx2_impl.h"
#else
#include "linear_int_portable_impl.h"
#endif

namespace llmx {
namespace LLMX_NS {

#if LLMX_LEVEL != 1
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
#endif

template <WeightType T>
static void either_int(const GemmArgs& args, int64_t panel_begin, int64_t panel_end) {
  return args.weight->act == ActType::i8 ? gemm_int<T, 1>(args, panel_begin, panel_end) : gemm_int<T, 2>(args, panel_begin, panel_end);
}

}  // namespace LLMX_NS
}  // namespace llmx
