// The inner loops of attention: R query rows against K (score_tile) and V (value_tile) of one chunk, sums in registers. Every
// score is one chain over head_dim, every value one chain over the keys of the chunk; R and NT cannot be seen in a result.
#pragma once
#include "attention_pages_impl.h"

namespace llmx {
namespace LLMX_NS {

constexpr int kChunkBlocks = kChunkTokens / kBlockTokens;

#if LLMX_LEVEL == 2
constexpr int kMaxRows = 12;  // 12 rows x 2 units fill 24 of 32 registers
#elif LLMX_LEVEL == 1
constexpr int kMaxRows = 6;  // 6 rows x 1 unit (two registers each) fill 12 of 16, and their chains hide the latency of an addition
#else
constexpr int kMaxRows = 4;
#endif
constexpr int units_at_once(int rows) {
#if LLMX_LEVEL == 2
  return rows <= 6 ? 4 : 2;
#else
  return rows <= 2 ? 2 : 1;
#endif
}

// Few rows finish a page faster than memory brings the next: they ask for it early. V of a chunk comes while its K is read,
// K of the next chunk while V is read.
constexpr int kPrefetchRows = 8;

// One part of NT units with the operands of R rows, `stride` floats apart.
template <class Page, int Part, int R, int NT>
LLMX_INLINE void dot_part(typename Page::Sum (*sum)[NT], const typename Page::Unit* unit, const float* x, int stride) {
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int t = 0; t < NT; ++t) sum[r][t] = Page::template dot<Part>(sum[r][t], unit[t], x + r * stride);
  }
}

template <class Page, int R, int NT>
LLMX_INLINE void dot_unit(typename Page::Sum (*sum)[NT], const typename Page::Unit* unit, const float* x, int stride) {
  dot_part<Page, 0, R, NT>(sum, unit, x, stride);
  if constexpr (Page::kParts == 2) dot_part<Page, 1, R, NT>(sum, unit, x, stride);
}

// score[r][16 t + lane] = sum over d of q[r][d] * k_block[t][d][lane]. q_scale: one per row. ahead: NT pages to ask for.
template <class Page, int R, int NT>
LLMX_INLINE void score_tile(const uint8_t* const* k_block, const uint8_t* const* ahead, int units, const float* q, int q_stride, const float* q_scale, float* score) {
  typename Page::Sum acc[R][NT];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int t = 0; t < NT; ++t) acc[r][t] = Page::zero_sum();
  }
  for (int u = 0; u < units; ++u) {
    typename Page::Unit unit[NT];
#pragma GCC unroll 4
    for (int t = 0; t < NT; ++t) unit[t] = Page::load_unit(k_block[t] + u * Page::kUnitBytes);
    if (R <= kPrefetchRows) {
#pragma GCC unroll 4
      for (int t = 0; t < NT; ++t) __builtin_prefetch(ahead[t] + u * Page::kUnitBytes, 0, 2);
    }
    dot_unit<Page, R, NT>(acc, unit, q + u * Page::kWords, q_stride);
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int t = 0; t < NT; ++t) store(score + r * kChunkTokens + t * kLanes, Page::score(acc[r][t], k_block[t], units, q_scale[r]));
  }
}

// acc[r] = acc[r] * old[r] + new[r] * (sum over keys of p[r][key] * V[key]), NT * 16 columns from `column`. p_scale: one per row.
// ahead: pages to ask for, ahead_step bytes with each unit. v_block: V of this head in each block; columns_left: real columns of the last unit when kTail.
template <class Page, int R, int NT, bool kTail>
LLMX_INLINE void value_tile(const uint8_t* const* v_block, const uint8_t* const* ahead, int ahead_step, int blocks, int v_dim, int column, int columns_left, const float* p, float* acc,
                            int acc_stride, const float* p_scale, const float* old_scale, const float* new_scale) {
  typename Page::Sum sum[R][NT];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int t = 0; t < NT; ++t) sum[r][t] = Page::zero_sum();
  }
  constexpr int kUnits = kBlockTokens / Page::kPerUnit, kColumn = Page::kUnitBytes / kLanes;
  const float* x = p;
  for (int b = 0; b < blocks; ++b) {
    const uint8_t* v = v_block[b] + column * kColumn;
    const uint8_t* next = ahead[b];
    for (int u = 0; u < kUnits; ++u, v += v_dim * kColumn, x += Page::kWords) {
      if (R <= kPrefetchRows) {
        for (int i = 0; i < ahead_step; i += kLineBytes) __builtin_prefetch(next + i, 0, 2);
        next += ahead_step;
      }
      typename Page::Unit unit[NT];
#pragma GCC unroll 4
      for (int t = 0; t < NT; ++t) unit[t] = kTail ? Page::load_unit_n(v, columns_left) : Page::load_unit(v + t * Page::kUnitBytes);
      dot_unit<Page, R, NT>(sum, unit, x, kChunkTokens);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int t = 0; t < NT; ++t) {
      float* to = acc + r * acc_stride + column + t * kLanes;
      store(to, fma(Page::value(sum[r][t], p_scale[r]), set1(new_scale[r]), mul(load(to), set1(old_scale[r]))));
    }
  }
}

struct ChunkPages {  // of one kv head in one chunk
  const uint8_t* k[kChunkBlocks];
  const uint8_t* v[kChunkBlocks];
  const uint8_t* next_k[kChunkBlocks];  // of the next chunk, or any page
  int blocks;
};

template <class Page, int R>
static void score_rows(const ChunkPages& pages, int units, const float* q, int q_stride, const float* q_scale, float* score) {
  constexpr int NT = units_at_once(R);
  for (int b = 0; b < pages.blocks; b += NT) {
    const uint8_t *group[NT], *ahead[NT];
    for (int t = 0; t < NT; ++t) {
      const int at = b + t < pages.blocks ? b + t : pages.blocks - 1;  // what is past the end is not read
      group[t] = pages.k[at];
      ahead[t] = pages.v[at];
    }
    score_tile<Page, R, NT>(group, ahead, units, q, q_stride, q_scale, score + b * kLanes);
  }
}

template <class Page, int R>
static void value_rows(const ChunkPages& pages, int v_dim, int ahead_step, const float* p, float* acc, int acc_stride, const float* p_scale,
                       const float* old_scale, const float* new_scale) {
  constexpr int NT = units_at_once(R);
  int column = 0;
  for (; column + NT * kLanes <= v_dim; column += NT * kLanes, ahead_step = 0)
    value_tile<Page, R, NT, false>(pages.v, pages.next_k, ahead_step, pages.blocks, v_dim, column, 0, p, acc, acc_stride, p_scale, old_scale, new_scale);
  for (; column + kLanes <= v_dim; column += kLanes, ahead_step = 0)
    value_tile<Page, R, 1, false>(pages.v, pages.next_k, ahead_step, pages.blocks, v_dim, column, 0, p, acc, acc_stride, p_scale, old_scale, new_scale);
  if (column < v_dim)
    value_tile<Page, R, 1, true>(pages.v, pages.next_k, 0, pages.blocks, v_dim, column, v_dim - column, p, acc, acc_stride, p_scale, old_scale, new_scale);
}

template <class Page>
struct TileKernels {
  void (*score)(const ChunkPages&, int, const float*, int, const float*, float*);
  void (*value)(const ChunkPages&, int, int, const float*, float*, int, const float*, const float*, const float*);
};

template <class Page, int R>
LLMX_INLINE TileKernels<Page> tile_kernels_of() {
  return {score_rows<Page, R>, value_rows<Page, R>};
}

// How many of `left` rows to take at once: what has a kernel, in even parts.
LLMX_INLINE int rows_at_once(int left) {
  if (left >= kMaxRows) return kMaxRows;
  return left > 8 ? (left + 1) / 2 : left;
}

template <class Page>
static TileKernels<Page> tile_kernels(int rows) {
  switch (rows) {
    case 1:
      return tile_kernels_of<Page, 1>();
    case 2:
      return tile_kernels_of<Page, 2>();
    case 3:
      return tile_kernels_of<Page, 3>();
#if LLMX_LEVEL == 1 || LLMX_LEVEL == 2
    case 4:
      return tile_kernels_of<Page, 4>();
    case 5:
      return tile_kernels_of<Page, 5>();
#endif
#if LLMX_LEVEL == 2
    case 6:
      return tile_kernels_of<Page, 6>();
    case 7:
      return tile_kernels_of<Page, 7>();
    case 8:
      return tile_kernels_of<Page, 8>();
#endif
    default:
      return tile_kernels_of<Page, kMaxRows>();
  }
}

}  // namespace LLMX_NS
}  // namespace llmx
