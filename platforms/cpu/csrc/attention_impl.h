// Paged attention for one ISA level; the contract is attention.h. From the inside out:
//
//   F32Page, Bf16Page   how a page's 64-byte unit meets one query (or probability) operand
//   score_tile          R query rows x NT blocks of keys, the sum over head_dim in registers
//   finish_scores       soft cap, alibi, masks and maximum of one row inside one chunk; then `exponentials`
//   value_tile          R rows x NT * 16 columns of V, the sum over a chunk's keys in registers, merged into the row's state
//   run_tile            one work item: the rows of one kv head, all or some of their chunks
//
// Every score is one chain over head_dim, every value one chain over the keys of a chunk: neither R, NT nor the rows beside
// it can be seen in a result. Keys that a row does not see have probability zero, and adding zero changes nothing.
#pragma once
#include "attention.h"
#include "attention_plan.h"
#include "simd.h"

namespace llmx {
namespace LLMX_NS {

constexpr int kUnitBytes = 64;  // sixteen keys (K) or columns (V), one dword each
constexpr int kChunkBlocks = kChunkTokens / kBlockTokens;
constexpr float kMinusInf = -__builtin_inff();

#if LLMX_LEVEL == 2
constexpr int kMaxRows = 12;  // 12 rows x 2 units fill 24 of 32 registers
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

// ---------------------------------------------------------------------------------------------------------------- pages
// kPerUnit: elements of the summed dimension in a unit. An operand is kWords floats per unit.

struct F32Page {
  static constexpr int kPerUnit = 1, kWords = 1, kBytes = 4;
  struct Unit {
    F16 v;
  };
  LLMX_INLINE Unit load_unit(const uint8_t* p) { return {load(reinterpret_cast<const float*>(p))}; }
  LLMX_INLINE Unit load_unit_n(const uint8_t* p, int n) { return {load_n(reinterpret_cast<const float*>(p), n)}; }
  struct Operand {
    F16 v;
  };
  LLMX_INLINE Operand operand(const float* p) { return {set1(*p)}; }
  LLMX_INLINE F16 dot(F16 acc, const Unit& unit, const Operand& x) { return fma(unit.v, x.v, acc); }
  LLMX_INLINE void store_operand(float* to, const float* from, int n) { memcpy(to, from, static_cast<size_t>(n) * 4); }
};

struct Bf16Page {
  static constexpr int kPerUnit = 2, kBytes = 2;
  LLMX_INLINE B32 load_n_pairs(const uint8_t* p, int n) {
    uint8_t tmp[kUnitBytes] = {0};
    memcpy(tmp, p, static_cast<size_t>(n) * 4);
    return load_pairs(tmp);
  }
#if LLMX_LEVEL == 2
  static constexpr int kWords = 1;  // a pair
  struct Unit {
    B32 v;
  };
  LLMX_INLINE B32 pairs_of(F16 first, F16 second) { return {reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(second.v, first.v))}; }
  LLMX_INLINE Unit load_unit(const uint8_t* p) { return {load_pairs(p)}; }
  LLMX_INLINE Unit load_unit_n(const uint8_t* p, int n) { return {load_n_pairs(p, n)}; }
  struct Operand {
    B32 v;
  };
  LLMX_INLINE Operand operand(const float* p) { return {set1_pair(float_to_bits(*p))}; }
  LLMX_INLINE F16 dot(F16 acc, const Unit& unit, const Operand& x) { return dot_pairs(acc, unit.v, x.v); }
  LLMX_INLINE void store_operand(float* to, const float* from, int n) {  // reads and writes whole vectors
    for (int i = 0; i < n; i += 2 * kLanes) _mm512_storeu_si512(to + i / 2, pairs_of(load(from + i), load(from + i + kLanes)).v);
  }
#else
  static constexpr int kWords = 2;  // two floats, both exactly representable in bf16
  struct Unit {
    F16 even, odd;
  };
  LLMX_INLINE Unit load_unit(const uint8_t* p) {
    const B32 pairs = load_pairs(p);
    return {pair_even(pairs), pair_odd(pairs)};
  }
  LLMX_INLINE Unit load_unit_n(const uint8_t* p, int n) {
    const B32 pairs = load_n_pairs(p, n);
    return {pair_even(pairs), pair_odd(pairs)};
  }
  struct Operand {
    F16 even, odd;
  };
  LLMX_INLINE Operand operand(const float* p) { return {set1(p[0]), set1(p[1])}; }
  LLMX_INLINE F16 dot(F16 acc, const Unit& unit, const Operand& x) { return fma(unit.odd, x.odd, fma(unit.even, x.even, acc)); }
  LLMX_INLINE void store_operand(float* to, const float* from, int n) {
    for (int i = 0; i < n; ++i) to[i] = bf16_to_float(float_to_bf16(from[i]));
  }
#endif
};

// Bytes of K of one head in one block; V of one head; words from one query row to the next.
template <class Page>
LLMX_INLINE int64_t k_bytes(int head_dim) {
  return static_cast<int64_t>(head_dim) * kBlockTokens * Page::kBytes;
}
template <class Page>
LLMX_INLINE int64_t v_bytes(int v_dim) {
  return static_cast<int64_t>(v_dim) * kBlockTokens * Page::kBytes;
}
template <class Page>
LLMX_INLINE int query_words(int head_dim) {
  return (head_dim / Page::kPerUnit * Page::kWords + kLanes - 1) / kLanes * kLanes;
}

// ------------------------------------------------------------------------------------------------------------- the tiles

// score[r][16 t + lane] = sum over d of q[r][d] * k_block[t][d][lane].
template <class Page, int R, int NT>
LLMX_INLINE void score_tile(const uint8_t* const* k_block, int units, const float* q, int q_stride, float* score) {
  F16 acc[R][NT];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int t = 0; t < NT; ++t) acc[r][t] = zero();
  }
  for (int u = 0; u < units; ++u) {
    typename Page::Unit unit[NT];
#pragma GCC unroll 4
    for (int t = 0; t < NT; ++t) unit[t] = Page::load_unit(k_block[t] + u * kUnitBytes);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const typename Page::Operand x = Page::operand(q + r * q_stride + u * Page::kWords);
#pragma GCC unroll 4
      for (int t = 0; t < NT; ++t) acc[r][t] = Page::dot(acc[r][t], unit[t], x);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int t = 0; t < NT; ++t) store(score + r * kChunkTokens + t * kLanes, acc[r][t]);
  }
}

// acc[r] = acc[r] * old[r] + new[r] * (sum over keys of p[r][key] * V[key]), NT * 16 columns from `column`.
// v_block: V of this head in each block; columns_left: real columns of the last unit when kTail.
template <class Page, int R, int NT, bool kTail>
LLMX_INLINE void value_tile(const uint8_t* const* v_block, int blocks, int v_dim, int column, int columns_left, const float* p, float* acc,
                            int acc_stride, const float* old_scale, const float* new_scale) {
  F16 sum[R][NT];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int t = 0; t < NT; ++t) sum[r][t] = zero();
  }
  constexpr int kUnits = kBlockTokens / Page::kPerUnit;
  const float* x = p;
  for (int b = 0; b < blocks; ++b) {
    const uint8_t* v = v_block[b] + column * 4;
    for (int u = 0; u < kUnits; ++u, v += v_dim * 4, x += Page::kWords) {
      typename Page::Unit unit[NT];
#pragma GCC unroll 4
      for (int t = 0; t < NT; ++t) unit[t] = kTail ? Page::load_unit_n(v, columns_left) : Page::load_unit(v + t * kUnitBytes);
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
        const typename Page::Operand weight = Page::operand(x + r * kChunkTokens);
#pragma GCC unroll 4
        for (int t = 0; t < NT; ++t) sum[r][t] = Page::dot(sum[r][t], unit[t], weight);
      }
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int t = 0; t < NT; ++t) {
      float* to = acc + r * acc_stride + column + t * kLanes;
      store(to, fma(sum[r][t], set1(new_scale[r]), mul(load(to), set1(old_scale[r]))));
    }
  }
}

template <class Page, int R>
static void score_rows(const uint8_t* const* k_block, int blocks, int units, const float* q, int q_stride, float* score) {
  constexpr int NT = units_at_once(R);
  for (int b = 0; b < blocks; b += NT) {
    const uint8_t* group[NT];
    for (int t = 0; t < NT; ++t) group[t] = k_block[b + t < blocks ? b + t : blocks - 1];  // what is past the end is not read
    score_tile<Page, R, NT>(group, units, q, q_stride, score + b * kLanes);
  }
}

template <class Page, int R>
static void value_rows(const uint8_t* const* v_block, int blocks, int v_dim, const float* p, float* acc, int acc_stride, const float* old_scale,
                       const float* new_scale) {
  constexpr int NT = units_at_once(R);
  int column = 0;
  for (; column + NT * kLanes <= v_dim; column += NT * kLanes)
    value_tile<Page, R, NT, false>(v_block, blocks, v_dim, column, 0, p, acc, acc_stride, old_scale, new_scale);
  for (; column + kLanes <= v_dim; column += kLanes)
    value_tile<Page, R, 1, false>(v_block, blocks, v_dim, column, 0, p, acc, acc_stride, old_scale, new_scale);
  if (column < v_dim) value_tile<Page, R, 1, true>(v_block, blocks, v_dim, column, v_dim - column, p, acc, acc_stride, old_scale, new_scale);
}

template <class Page>
struct TileKernels {
  void (*score)(const uint8_t* const*, int, int, const float*, int, float*);
  void (*value)(const uint8_t* const*, int, int, const float*, float*, int, const float*, const float*);
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
#if LLMX_LEVEL == 2
    case 4:
      return tile_kernels_of<Page, 4>();
    case 5:
      return tile_kernels_of<Page, 5>();
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

// --------------------------------------------------------------------------------------------------------------- softmax

// e^x for x <= 0: exp_below(0) is exactly 1, -inf gives 0, NaN stays. Relative error 1.6e-7 (2^r on [0, 1): own minimax fit).
LLMX_INLINE F16 exp_below(F16 x) {
#if LLMX_LEVEL == 2
  const F16 t = mul(max(set1(-200.0f), x), set1(1.44269504f));  // x second: NaN passes
  const F16 r = {_mm512_reduce_ps(t.v, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC)};  // t - floor(t)
  F16 p = fma(set1(1.86713075e-3f), r, set1(9.01702885e-3f));
  p = fma(p, r, set1(5.57999127e-2f));
  p = fma(p, r, set1(2.40164444e-1f));
  p = fma(p, r, set1(6.93151295e-1f));
  return scale_pow2(fma(p, r, set1(1.0f)), t);  // by 2^floor(t)
#else
  return exp(x);
#endif
}

struct RowRule {  // what one query row may see, and how its scores are changed
  int64_t position;
  int64_t first_key;  // lowest visible key
  float slope;        // alibi
  float soft_cap;
};

LLMX_INLINE F16 key_lanes() {
  static const float kIota[kLanes] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return load(kIota);
}

// Bit i: key `first + i` is visible.
LLMX_INLINE uint32_t visible_lanes(const RowRule& rule, int64_t first) {
  const int64_t last = rule.position - first;
  const int64_t skip = rule.first_key - first;
  uint32_t bits = last < 0 ? 0u : last >= 15 ? 0xffffu : (2u << last) - 1u;
  if (skip > 0) bits &= skip > 15 ? 0u : 0xffffu << skip;
  return bits;
}

// One block's scores with cap, alibi and mask.
LLMX_INLINE F16 finish_block(const RowRule& rule, int64_t key, float* at) {
  F16 s = load(at);
  if (rule.soft_cap > 0.0f) s = mul(set1(rule.soft_cap), tanh(div(s, set1(rule.soft_cap))));
  if (rule.slope != 0.0f) s = fma(set1(rule.slope), add(key_lanes(), set1(static_cast<float>(key - rule.position))), s);
  s = select_mask(visible_lanes(rule, key), s, set1(kMinusInf));
  store(at, s);
  return s;
}

// Final scores of one row in `score`, blocks [0, blocks) from key `first`; returns their maximum.
LLMX_INLINE float finish_scores(const RowRule& rule, int64_t first, int blocks, float* score) {
  int plain_begin = 0, plain_end = 0;  // blocks that are visible as a whole and stay as they are
  if (rule.soft_cap == 0.0f && rule.slope == 0.0f) {
    const int64_t skipped = rule.first_key > first ? (rule.first_key - first + kBlockTokens - 1) / kBlockTokens : 0;
    const int64_t past = rule.position < first ? 0 : (rule.position + 1 - first) / kBlockTokens;
    plain_begin = skipped < blocks ? static_cast<int>(skipped) : blocks;
    plain_end = past < blocks ? static_cast<int>(past) : blocks;
    if (plain_end < plain_begin) plain_end = plain_begin;
  }
  F16 top = set1(kMinusInf);
  for (int b = 0; b < plain_begin; ++b) top = max(finish_block(rule, first + b * kBlockTokens, score + b * kLanes), top);
  for (int b = plain_begin; b < plain_end; ++b) top = max(load(score + b * kLanes), top);
  for (int b = plain_end; b < blocks; ++b) top = max(finish_block(rule, first + b * kBlockTokens, score + b * kLanes), top);
  return hmax(top);
}

// Turn scores into operands of value_tile, in place, and return their sum as the operands have it (rounded).

LLMX_INLINE float exponentials(F32Page, float* score, int blocks, float top) {
  F16 sum = zero();
  for (int b = 0; b < blocks; ++b) {
    const F16 p = exp_below(sub(load(score + b * kLanes), set1(top)));
    store(score + b * kLanes, p);
    sum = add(sum, p);
  }
  return hsum(sum);
}

LLMX_INLINE float exponentials(Bf16Page, float* score, int blocks, float top) {
  F16 sum = zero();
#if LLMX_LEVEL == 2
  const B32 ones = set1_pair(0x3f803f80u);
  for (int b = 0; b < blocks; b += 2) {
    const F16 p0 = exp_below(sub(load(score + b * kLanes), set1(top)));
    const F16 p1 = b + 1 < blocks ? exp_below(sub(load(score + (b + 1) * kLanes), set1(top))) : zero();
    const B32 pairs = Bf16Page::pairs_of(p0, p1);
    _mm512_storeu_si512(score + b / 2 * kLanes, pairs.v);  // behind what has been read
    sum = dot_pairs(sum, pairs, ones);
  }
#else
  for (int b = 0; b < blocks; ++b) {
    uint16_t rounded[kLanes];
    store_bf16(rounded, exp_below(sub(load(score + b * kLanes), set1(top))));
    const F16 p = load_bf16(rounded);
    store(score + b * kLanes, p);
    sum = add(sum, p);
  }
#endif
  return hsum(sum);
}

// ----------------------------------------------------------------------------------------------------- state of the rows

// Softmax state of up to kMaxRows rows side by side: maximum and sum; the accumulators are [rows, acc_stride].
struct MergeScales {
  float old_scale[kLanes], new_scale[kLanes];
};

// The one merge of a chunk's maximum and sum into a row's. Rows with seen == 0 do not change.
LLMX_INLINE MergeScales merge_sums(float* m, float* l, const float* chunk_m, const float* chunk_l, const uint8_t* seen, int rows) {
  float m_old[kLanes], m_new[kLanes], top[kLanes];
  for (int r = 0; r < kLanes; ++r) {
    const bool live = r < rows && seen[r];
    m_old[r] = live ? m[r] : 0.0f;
    m_new[r] = live ? chunk_m[r] : 0.0f;
    top[r] = m_new[r] > m_old[r] ? m_new[r] : m_old[r];
  }
  MergeScales scales;
  store(scales.old_scale, exp_below(sub(load(m_old), load(top))));  // a row's first chunk: exp(-inf) = 0
  store(scales.new_scale, exp_below(sub(load(m_new), load(top))));
  for (int r = 0; r < rows; ++r) {
    if (seen[r]) {
      m[r] = top[r];
      l[r] = fma1(chunk_l[r], scales.new_scale[r], l[r] * scales.old_scale[r]);
    } else {
      scales.old_scale[r] = 1.0f;
      scales.new_scale[r] = 0.0f;
    }
  }
  return scales;
}

// out = acc / sum, with the sink's share in the sum. Adding 0 makes -0 of skipped terms +0.
LLMX_INLINE void finish_row(float* out, const float* acc, float m, float l, const float* sink, int v_dim) {
  float scale = 1.0f / l;
  if (sink) {
    const float top = *sink > m ? *sink : m;
    float parts[kLanes] = {m, *sink};
    store(parts, exp_below(sub(load(parts), set1(top))));
    scale = parts[0] / fma1(l, parts[0], parts[1]);
  }
  int d = 0;
  for (; d + kLanes <= v_dim; d += kLanes) store(out + d, add(mul(load(acc + d), set1(scale)), zero()));
  if (d < v_dim) store_n(out + d, add(mul(load(acc + d), set1(scale)), zero()), v_dim - d);
}

// ------------------------------------------------------------------------------------------------------------- work item

struct TileScratch {  // of one thread; sizes in attention_plan.h
  float* q;           // [rows, words]
  float* acc;         // [rows, acc_stride]
  float* m;           // [rows]
  float* l;           // [rows]
  float* score;       // [kMaxRows, kChunkTokens]
};

LLMX_INLINE TileScratch tile_scratch(const AttnArgs& a, void* scratch) {
  const ScratchSizes sizes = scratch_sizes(a);
  float* at = static_cast<float*>(scratch);
  TileScratch s;
  s.q = at, at += sizes.q;
  s.acc = at, at += sizes.acc;
  s.m = at, at += sizes.rows;
  s.l = at, at += sizes.rows;
  s.score = at;
  return s;
}

template <class Page>
static void load_queries(const AttnArgs& a, const AttnItem& item, const TileScratch& s) {
  const int group = a.q_heads / a.geo.kv_heads, dim = a.geo.head_dim, words = query_words<Page>(dim);
  float scaled[kMaxHeadDim + 2 * kLanes];
  memset(scaled + dim, 0, 2 * kLanes * sizeof(float));
  for (int t = 0; t < item.tokens; ++t) {
    for (int g = 0; g < group; ++g) {
      const float* q = a.query + (item.row + t) * a.ld_query + (item.kv_head * group + g) * dim;
      int d = 0;
      for (; d + kLanes <= dim; d += kLanes) store(scaled + d, mul(load(q + d), set1(a.scale)));
      for (; d < dim; ++d) scaled[d] = q[d] * a.scale;
      Page::store_operand(s.q + (t * group + g) * words, scaled, dim);
    }
  }
}

// The rows [row, row + rows) of a work item in one chunk.
template <class Page>
static void run_rows(const AttnArgs& a, const AttnItem& item, const TileScratch& s, int row, int rows, int chunk, float* partial) {
  const KvGeometry& geo = a.geo;
  const int group = a.q_heads / geo.kv_heads;
  const int acc_stride = padded_columns(geo.v_head_dim), words = query_words<Page>(geo.head_dim);
  const int64_t base = static_cast<int64_t>(chunk) * kChunkTokens;
  const int64_t first_position = item.position + row / group, last_position = item.position + (row + rows - 1) / group;
  const int64_t first_key = first_visible(first_position, a.window);
  int64_t begin = first_key > base ? (first_key - base) / kBlockTokens : 0;
  int64_t end = (last_position - base) / kBlockTokens + 1;
  begin -= begin % 4;  // whole groups of units; masked keys change nothing
  end = end > kChunkBlocks ? kChunkBlocks : end;
  float chunk_m[kLanes], chunk_l[kLanes];
  uint8_t seen[kLanes] = {0};
  MergeScales scales;
  float* acc = s.acc + row * acc_stride;
  if (begin < end) {
    const int blocks = static_cast<int>(end - begin);
    const int32_t* table = a.table + static_cast<int64_t>(a.slot[item.request]) * a.stride + base / kBlockTokens + begin;
    const uint8_t *k_block[kChunkBlocks], *v_block[kChunkBlocks];
    for (int b = 0; b < blocks; ++b) {
      const uint8_t* layer = a.pages + table[b] * geo.block_bytes + geo.layer_offset;
      k_block[b] = layer + item.kv_head * k_bytes<Page>(geo.head_dim);
      v_block[b] = layer + geo.kv_heads * k_bytes<Page>(geo.head_dim) + item.kv_head * v_bytes<Page>(geo.v_head_dim);
    }
    const TileKernels<Page> kernels = tile_kernels<Page>(rows);
    kernels.score(k_block, blocks, geo.head_dim / Page::kPerUnit, s.q + row * words, words, s.score);
    for (int r = 0; r < rows; ++r) {
      const int64_t position = item.position + (row + r) / group;
      const int head = item.kv_head * group + (row + r) % group;
      const RowRule rule = {position, first_visible(position, a.window), a.alibi ? a.alibi[head] : 0.0f, a.soft_cap};
      float* score = s.score + r * kChunkTokens;
      const int64_t first = base + begin * kBlockTokens;
      seen[r] = position >= first && rule.first_key < first + blocks * kBlockTokens;
      chunk_m[r] = finish_scores(rule, first, blocks, score);
      chunk_l[r] = exponentials(Page{}, score, blocks, seen[r] ? chunk_m[r] : 0.0f);
    }
    scales = merge_sums(s.m + row, s.l + row, chunk_m, chunk_l, seen, rows);
    kernels.value(v_block, blocks, geo.v_head_dim, s.score, acc, acc_stride, scales.old_scale, scales.new_scale);
  }
  if (!partial) return;
  float* to = partial + row * partial_floats(a);
  for (int r = 0; r < rows; ++r, to += partial_floats(a)) {
    to[0] = s.m[row + r];
    to[1] = s.l[row + r];
    to[2] = seen[r] ? 1.0f : 0.0f;
    memcpy(to + kLanes, acc + r * acc_stride, static_cast<size_t>(acc_stride) * 4);
  }
}

LLMX_INLINE void clear_state(const TileScratch& s, int rows, int acc_stride) {
  for (int r = 0; r < rows; ++r) {
    s.m[r] = kMinusInf;
    s.l[r] = 0.0f;
  }
  memset(s.acc, 0, static_cast<size_t>(rows) * acc_stride * 4);
}

LLMX_INLINE void finish_tile(const AttnArgs& a, const AttnItem& item, const TileScratch& s) {
  const int group = a.q_heads / a.geo.kv_heads, v_dim = a.geo.v_head_dim, acc_stride = padded_columns(v_dim);
  for (int t = 0; t < item.tokens; ++t) {
    for (int g = 0; g < group; ++g) {
      const int head = item.kv_head * group + g, r = t * group + g;
      finish_row(a.out + (item.row + t) * a.ld_out + head * v_dim, s.acc + r * acc_stride, s.m[r], s.l[r], a.sinks ? a.sinks + head : nullptr, v_dim);
    }
  }
}

template <class Page>
static void run_tile(const AttnArgs& a, const AttnItem& item, float* partials, void* scratch) {
  const TileScratch s = tile_scratch(a, scratch);
  const int rows = item.tokens * (a.q_heads / a.geo.kv_heads), acc_stride = padded_columns(a.geo.v_head_dim);
  load_queries<Page>(a, item, s);
  clear_state(s, rows, acc_stride);
  for (int chunk = item.chunk_begin; chunk < item.chunk_end; ++chunk) {
    float* partial = nullptr;
    if (item.partial >= 0) {  // this chunk alone: from an empty state into its own place
      partial = partials + (item.partial + static_cast<int64_t>(chunk - item.chunk_begin) * rows) * partial_floats(a);
      if (chunk > item.chunk_begin) clear_state(s, rows, acc_stride);
    }
    for (int row = 0, take; row < rows; row += take) {
      take = rows_at_once(rows - row);
      run_rows<Page>(a, item, s, row, take, chunk, partial);
    }
  }
  if (item.partial < 0) finish_tile(a, item, s);
}

static void attn_run(const AttnArgs& a, const AttnPlan&, const void* items, int64_t begin, int64_t end, void* partial, void* scratch) {
  const AttnItem* list = static_cast<const AttnItem*>(items);
  for (int64_t i = begin; i < end; ++i) {
    if (a.geo.type == KvType::bf16)
      run_tile<Bf16Page>(a, list[i], static_cast<float*>(partial), scratch);
    else
      run_tile<F32Page>(a, list[i], static_cast<float*>(partial), scratch);
  }
}

// Partials of one tile, chunk by chunk in ascending order: what run_tile does when it keeps the state itself.
static void merge_row(const AttnArgs& a, const AttnItem& item, const float* partials, int row, float* m, float* l, float* acc) {
  const int rows = item.tokens * (a.q_heads / a.geo.kv_heads), acc_stride = padded_columns(a.geo.v_head_dim);
  for (int chunk = item.chunk_begin; chunk < item.chunk_end; ++chunk) {
    const float* from = partials + (item.partial + static_cast<int64_t>(chunk - item.chunk_begin) * rows + row) * partial_floats(a);
    const uint8_t seen = from[2] != 0.0f;
    const MergeScales scales = merge_sums(m, l, from, from + 1, &seen, 1);
    for (int d = 0; d < acc_stride; d += kLanes)
      store(acc + d, fma(load(from + kLanes + d), set1(scales.new_scale[0]), mul(load(acc + d), set1(scales.old_scale[0]))));
  }
}

static void attn_merge(const AttnArgs& a, const AttnPlan& plan, const void* items, int64_t begin, int64_t end, const void* partial) {
  const AttnItem* list = static_cast<const AttnItem*>(items) + plan.units;
  const int group = a.q_heads / a.geo.kv_heads, v_dim = a.geo.v_head_dim;
  for (int64_t i = begin; i < end; ++i) {
    const AttnItem& item = list[i];
    for (int row = 0; row < item.tokens * group; ++row) {
      const int head = item.kv_head * group + row % group;
      float m = kMinusInf, l = 0.0f;
      float acc[kMaxHeadDim] = {0};
      merge_row(a, item, static_cast<const float*>(partial), row, &m, &l, acc);
      finish_row(a.out + (item.row + row / group) * a.ld_out + head * v_dim, acc, m, l, a.sinks ? a.sinks + head : nullptr, v_dim);
    }
  }
}

// ---------------------------------------------------------------------------------------------------------------- writing

// K and V of one head, for one token or for two neighbours that share a pair (pair: `from` and the row `next` floats on).

LLMX_INLINE void write_k(F32Page, uint8_t* to, const float* from, int64_t next, bool pair, int slot, int dim) {
  float* page = reinterpret_cast<float*>(to) + slot;
  for (int d = 0; d < dim; ++d) {
    page[d * kBlockTokens] = from[d];
    if (pair) page[d * kBlockTokens + 1] = from[next + d];
  }
}

LLMX_INLINE void write_v(F32Page, uint8_t* to, const float* from, int64_t next, bool pair, int slot, int dim) {
  float* page = reinterpret_cast<float*>(to) + static_cast<int64_t>(slot) * dim;
  memcpy(page, from, static_cast<size_t>(dim) * 4);
  if (pair) memcpy(page + dim, from + next, static_cast<size_t>(dim) * 4);
}

LLMX_INLINE void round_row(uint16_t* to, const float* from, int dim) {
  int d = 0;
  for (; d + kLanes <= dim; d += kLanes) store_bf16(to + d, load(from + d));
  for (; d < dim; ++d) to[d] = float_to_bf16(from[d]);
}

LLMX_INLINE void write_k(Bf16Page, uint8_t* to, const float* from, int64_t next, bool pair, int slot, int dim) {
  uint16_t first[kMaxHeadDim], second[kMaxHeadDim];
  round_row(first, from, dim);
  if (pair) round_row(second, from + next, dim);
  uint8_t* page = to + slot * 4;
  for (int d = 0; d < dim; d += 2, page += kUnitBytes) {
    memcpy(page, first + d, 4);
    if (pair) memcpy(page + 4, second + d, 4);
  }
}

LLMX_INLINE void write_v(Bf16Page, uint8_t* to, const float* from, int64_t next, bool pair, int slot, int dim) {
  uint16_t first[kMaxHeadDim], second[kMaxHeadDim];
  round_row(first, from, dim);
  uint16_t* page = reinterpret_cast<uint16_t*>(to) + static_cast<int64_t>(slot / 2) * dim * 2;
  if (pair) {
    round_row(second, from + next, dim);
    uint32_t* pairs = reinterpret_cast<uint32_t*>(page);
    for (int d = 0; d < dim; ++d) pairs[d] = first[d] | static_cast<uint32_t>(second[d]) << 16;
  } else {  // 16-bit stores: another thread may write the other half
    for (int d = 0; d < dim; ++d) page[2 * d + slot % 2] = first[d];
  }
}

// Writes one token row, or two where both fall into this call and share a pair; returns how many.
template <class Page>
static int write_rows(const KvWriteArgs& a, int request, int64_t position, int64_t row, int64_t end) {
  const KvGeometry& geo = a.geo;
  const int32_t block = a.table[static_cast<int64_t>(a.slot[request]) * a.stride + position / kBlockTokens];
  const int slot = static_cast<int>(position % kBlockTokens);
  const bool pair = slot % 2 == 0 && row + 1 < end;
  uint8_t* k = a.pages + block * geo.block_bytes + geo.layer_offset;
  uint8_t* v = k + geo.kv_heads * k_bytes<Page>(geo.head_dim);
  for (int h = 0; h < geo.kv_heads; ++h) {
    write_k(Page{}, k + h * k_bytes<Page>(geo.head_dim), a.k + row * a.ld_k + h * geo.head_dim, a.ld_k, pair, slot, geo.head_dim);
    write_v(Page{}, v + h * v_bytes<Page>(geo.v_head_dim), a.v + row * a.ld_v + h * geo.v_head_dim, a.ld_v, pair, slot, geo.v_head_dim);
  }
  return pair ? 2 : 1;
}

static void kv_write(const KvWriteArgs& a, int64_t row_begin, int64_t row_end) {
  int64_t row = 0;
  for (int r = 0; r < a.n && row < row_end; row += a.q[r], ++r) {
    const int64_t from = row > row_begin ? row : row_begin;
    const int64_t to = row + a.q[r] < row_end ? row + a.q[r] : row_end;
    for (int64_t i = from; i < to;) {
      const int64_t position = a.start[r] + (i - row);
      i += a.geo.type == KvType::bf16 ? write_rows<Bf16Page>(a, r, position, i, to) : write_rows<F32Page>(a, r, position, i, to);
    }
  }
}

}  // namespace LLMX_NS
}  // namespace llmx
