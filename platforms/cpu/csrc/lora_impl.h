// The arithmetic of adapters, once per level.
#include "lora.h"
#include "simd.h"

namespace llmx {
namespace LLMX_NS {

struct LoraF32 {
  using Element = float;
  LLMX_INLINE F16 read(const Element* p) { return load(p); }
};
struct LoraF16 {
  using Element = uint16_t;
  LLMX_INLINE F16 read(const Element* p) { return load_f16(p); }
};
struct LoraBf16 {
  using Element = uint16_t;
  LLMX_INLINE F16 read(const Element* p) { return load_bf16(p); }
};

template <class T, int Rows, int Ranks>
static void shrink_tile(const LoraUse& use, const float* x, int64_t ldx, int64_t first, int64_t rank) {
  const LoraPart& part = *use.part;
  const int64_t width = lora_width(part.k), whole = part.k / kLanes * kLanes;
  const auto* a = reinterpret_cast<const typename T::Element*>(part.a) + rank * width;
  const float* row[Rows];
  F16 sum[Rows][Ranks];
#pragma GCC unroll 2
  for (int i = 0; i < Rows; ++i) {
    row[i] = x + use.rows[first + i] * ldx;
#pragma GCC unroll 4
    for (int r = 0; r < Ranks; ++r) sum[i][r] = zero();
  }
  for (int64_t k = 0; k < width; k += kLanes) {
    F16 value[Rows];
#pragma GCC unroll 2
    for (int i = 0; i < Rows; ++i) value[i] = k < whole ? load(row[i] + k) : load_n(row[i] + k, static_cast<int>(part.k - k));
#pragma GCC unroll 4
    for (int r = 0; r < Ranks; ++r) {
      const F16 weight = T::read(a + r * width + k);
#pragma GCC unroll 2
      for (int i = 0; i < Rows; ++i) sum[i][r] = fma(weight, value[i], sum[i][r]);
    }
  }
  for (int i = 0; i < Rows; ++i) {
    for (int r = 0; r < Ranks; ++r) use.h[(first + i) * part.rank + rank + r] = hsum(sum[i][r]) * part.scale;
  }
}

template <class T, int Rows, int Ranks>
static void shrink_rows(const LoraUse& use, const float* x, int64_t ldx, int64_t first, int64_t from, int64_t to) {
  int64_t rank = from;
  for (; rank + Ranks <= to; rank += Ranks) shrink_tile<T, Rows, Ranks>(use, x, ldx, first, rank);
  for (; rank < to; ++rank) shrink_tile<T, Rows, 1>(use, x, ldx, first, rank);
}

template <class T>
static void shrink_as(const LoraUse& use, const float* x, int64_t ldx, int64_t begin, int64_t end, int64_t from, int64_t to) {
  for (; begin + 2 <= end; begin += 2) shrink_rows<T, 2, 2>(use, x, ldx, begin, from, to);
  if (begin < end) shrink_rows<T, 1, 4>(use, x, ldx, begin, from, to);
}

static void shrink(const LoraUse& use, const float* x, int64_t ldx, int64_t begin, int64_t end, int64_t from, int64_t to) {
  switch (use.part->a_type) {
    case WeightType::f32:
      return shrink_as<LoraF32>(use, x, ldx, begin, end, from, to);
    case WeightType::f16:
      return shrink_as<LoraF16>(use, x, ldx, begin, end, from, to);
    default:
      return shrink_as<LoraBf16>(use, x, ldx, begin, end, from, to);
  }
}

LLMX_INLINE F16 load_some(const float* p, int n) { return n == kLanes ? load(p) : load_n(p, n); }
LLMX_INLINE void store_some(float* p, F16 a, int n) {
  if (n == kLanes) return store(p, a);
  store_n(p, a, n);
}

template <class T, int Rows>
static void expand_tile(const LoraUse& use, int64_t first, float* y, int64_t ldy, int64_t panel) {
  const LoraPart& part = *use.part;
  const auto* b = reinterpret_cast<const typename T::Element*>(part.b) + panel * part.rank * kPanel;
  const float* h = use.h + first * part.rank;
  F16 sum[Rows];
#pragma GCC unroll 4
  for (int i = 0; i < Rows; ++i) sum[i] = zero();
  for (int64_t r = 0; r < part.rank; ++r) {
    const F16 weight = T::read(b + r * kPanel);
#pragma GCC unroll 4
    for (int i = 0; i < Rows; ++i) sum[i] = fma(weight, set1(h[i * part.rank + r]), sum[i]);
  }
  const int64_t column = panel * kPanel;
  const int n = static_cast<int>(part.rows - column < kPanel ? part.rows - column : kPanel);
#pragma GCC unroll 4
  for (int i = 0; i < Rows; ++i) {
    float* to = y + use.rows[first + i] * ldy + column;
    F16 value = add(load_some(to, n), sum[i]);
    if (part.g) value = mul(load_some(part.g + column, n), value);
    store_some(to, value, n);
  }
}

template <class T>
static void expand_as(const LoraUse& use, int64_t begin, int64_t end, float* y, int64_t ldy, int64_t panel_begin, int64_t panel_end) {
  for (int64_t panel = panel_begin; panel < panel_end; ++panel) {
    for (int64_t row = begin; row < end; row += 4) {
      switch (end - row) {
        case 1:
          expand_tile<T, 1>(use, row, y, ldy, panel);
          break;
        case 2:
          expand_tile<T, 2>(use, row, y, ldy, panel);
          break;
        case 3:
          expand_tile<T, 3>(use, row, y, ldy, panel);
          break;
        default:
          expand_tile<T, 4>(use, row, y, ldy, panel);
      }
    }
  }
}

static void expand(const LoraUse& use, int64_t begin, int64_t end, float* y, int64_t ldy, int64_t panel_begin, int64_t panel_end) {
  switch (use.part->b_type) {
    case WeightType::f32:
      return expand_as<LoraF32>(use, begin, end, y, ldy, panel_begin, panel_end);
    case WeightType::f16:
      return expand_as<LoraF16>(use, begin, end, y, ldy, panel_begin, panel_end);
    default:
      return expand_as<LoraBf16>(use, begin, end, y, ldy, panel_begin, panel_end);
  }
}

// The additions of linear_impl.h's store_row, in its order.
static void finish(float* y, int64_t ldy, int64_t m, const float* bias, const float* residual, int64_t ld_residual, int64_t begin, int64_t end) {
  for (int64_t row = 0; row < m; ++row) {
    for (int64_t column = begin; column < end; column += kLanes) {
      const int n = static_cast<int>(end - column < kLanes ? end - column : kLanes);
      float* to = y + row * ldy + column;
      F16 value = load_some(to, n);
      if (bias) value = add(value, load_some(bias + column, n));
      if (residual) value = add(load_some(residual + row * ld_residual + column, n), value);
      store_some(to, value, n);
    }
  }
}

static constexpr LoraKernels kLoraKernels = {shrink, expand, finish};

}  // namespace LLMX_NS
}  // namespace llmx
