// Paged attention for one ISA level; the contract is attention.h. From the inside out:
//
//   attention_pages_impl.h    F32Page, Bf16Page, Int8Page (attention_int8_impl.h): how a page's unit meets one operand
//   attention_tiles_impl.h    score_tile, value_tile: R query rows x NT units, sums in registers
//   attention_softmax_impl.h  soft cap, alibi, masks, maximum, exponentials of one row in one chunk; the merge of chunks
//   this file                 run_tile: one work item, the rows of one kv head over all or some of their chunks
//   attention_write_impl.h    kv_write
//
// Keys that a row does not see have probability zero, and adding zero changes nothing: neither the rows beside a row nor the
// way its prompt was cut can be seen in its result. (Values must be numbers: zero times NaN is NaN.)
#pragma once
#include <algorithm>

#include "attention_plan.h"
#include "attention_softmax_impl.h"
#include "attention_tiles_impl.h"
#include "attention_write_impl.h"

namespace llmx {
namespace LLMX_NS {

struct TileScratch {  // of one thread; sizes in attention_plan.h
  float* q;           // [rows, words]
  float* acc;         // [rows, acc_stride]
  float* m;           // [rows]
  float* l;           // [rows]
  float* q_scale;     // [rows]
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
  s.q_scale = at, at += sizes.rows;
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
      s.q_scale[t * group + g] = Page::store_operand(s.q + (t * group + g) * words, scaled, dim);
    }
  }
}

// Blocks of one chunk that rows at positions [first, last] read, counted from the chunk's own first one.
struct ChunkRange {
  int64_t begin, end;
};
LLMX_INLINE ChunkRange blocks_read(const AttnArgs& a, int64_t first, int64_t last, int64_t base) {
  const int64_t first_key = first_visible(first, a.window), end = (last - base) / kBlockTokens + 1;
  const int64_t begin = first_key > base ? (first_key - base) / kBlockTokens : 0;
  return {begin - begin % 4, end > kChunkBlocks ? kChunkBlocks : end};  // whole groups of units; masked keys change nothing
}

LLMX_INLINE int64_t last_position_of(const AttnItem& item) { return item.last_key < 0 ? item.position + item.tokens - 1 : item.last_key; }

// Keys that are read after this chunk, to be asked for meanwhile: those of the next chunk, or of the item that follows. They lie where
// the hardware expects nothing. Without a follower, any page.
template <class Page>
LLMX_INLINE void pages_after(const AttnArgs& a, const AttnItem& item, const AttnItem* follower, int chunk, ChunkPages* pages) {
  const bool more = chunk + 1 < item.chunk_end;
  if (!more && !follower) {
    std::copy_n(pages->v, pages->blocks, pages->next_k);
    return;
  }
  const AttnItem& next = more ? item : *follower;
  const int64_t at = more ? chunk + 1 : next.chunk_begin, base = at * kChunkTokens;
  const ChunkRange range = blocks_read(a, next.position, last_position_of(next), base);
  const int32_t* table = a.table + static_cast<int64_t>(a.slot[next.request]) * a.stride + base / kBlockTokens + range.begin;
  const int64_t offset = a.geo.layer_offset + next.kv_head * k_bytes<Page>(a.geo.head_dim);
  for (int b = 0; b < pages->blocks; ++b) pages->next_k[b] = b < range.end - range.begin ? a.pages + table[b] * a.geo.block_bytes + offset : pages->v[b];
}

// The rows [row, row + rows) of a work item in one chunk. follower: the item that comes after, if the keys after these are its own.
template <class Page>
static void run_rows(const AttnArgs& a, const AttnItem& item, const AttnItem* follower, const TileScratch& s, int row, int rows, int chunk, float* partial) {
  const KvGeometry& geo = a.geo;
  const int group = a.q_heads / geo.kv_heads;
  const int acc_stride = padded_columns(geo.v_head_dim), words = query_words<Page>(geo.head_dim);
  const int64_t base = static_cast<int64_t>(chunk) * kChunkTokens;
  const int64_t first_position = item.position + row / group;
  const int64_t last_position = item.last_key < 0 ? item.position + (row + rows - 1) / group : item.last_key;
  const auto [begin, end] = blocks_read(a, first_position, last_position, base);
  float chunk_m[kLanes], chunk_l[kLanes], p_scale[kLanes];
  uint8_t seen[kLanes] = {0};
  MergeScales scales;
  float* acc = s.acc + row * acc_stride;
  if (begin < end) {
    const int blocks = static_cast<int>(end - begin);
    const int32_t* table = a.table + static_cast<int64_t>(a.slot[item.request]) * a.stride + base / kBlockTokens + begin;
    const int64_t k_offset = geo.layer_offset + item.kv_head * k_bytes<Page>(geo.head_dim);
    const int64_t v_offset = geo.layer_offset + geo.kv_heads * k_bytes<Page>(geo.head_dim) + item.kv_head * v_bytes<Page>(geo.v_head_dim);
    ChunkPages pages;
    pages.blocks = blocks;
    for (int b = 0; b < blocks; ++b) {
      const uint8_t* block = a.pages + table[b] * geo.block_bytes;
      pages.k[b] = block + k_offset;
      pages.v[b] = block + v_offset;
    }
    pages_after<Page>(a, item, follower, chunk, &pages);
    const TileKernels<Page> kernels = tile_kernels<Page>(rows);
    kernels.score(pages, geo.head_dim / Page::kPerUnit, s.q + row * words, words, s.q_scale + row, s.score);
    for (int r = 0; r < rows; ++r) {
      const int64_t position = item.last_key < 0 ? item.position + (row + r) / group : item.last_key;
      const int head = item.kv_head * group + (row + r) % group;
      const RowRule rule = {position, first_visible(position, a.window), a.alibi ? a.alibi[head] : 0.0f, a.soft_cap};
      float* score = s.score + r * kChunkTokens;
      const int64_t first = base + begin * kBlockTokens;
      seen[r] = position >= first && rule.first_key < first + blocks * kBlockTokens;
      chunk_m[r] = finish_scores(rule, first, blocks, score);
      chunk_l[r] = exponentials(Page{}, score, blocks, seen[r] ? chunk_m[r] : 0.0f, pages.v, geo.v_head_dim, p_scale + r);
    }
    scales = merge_sums(s.m + row, s.l + row, chunk_m, chunk_l, seen, rows);
    const int ahead_step = static_cast<int>(k_bytes<Page>(geo.head_dim)) * Page::kPerUnit / kBlockTokens;
    kernels.value(pages, geo.v_head_dim, ahead_step, s.score, acc, acc_stride, p_scale, scales.old_scale, scales.new_scale);
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
static void run_tile(const AttnArgs& a, const AttnItem& item, const AttnItem* follower, float* partials, void* scratch) {
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
      run_rows<Page>(a, item, follower, s, row, take, chunk, partial);
    }
  }
  if (item.partial < 0) finish_tile(a, item, s);
}

static void attn_run(const AttnArgs& a, const AttnPlan& plan, const void* items, int64_t begin, int64_t end, void* partial, void* scratch) {
  const AttnItem* list = static_cast<const AttnItem*>(items);
  for (int64_t i = begin; i < end; ++i) {
    const AttnItem* follower = i + 1 < plan.units ? list + i + 1 : nullptr;  // another thread's, at the end: it shares a cache further out
    switch (a.geo.type) {
      case KvType::bf16:
        run_tile<Bf16Page>(a, list[i], follower, static_cast<float*>(partial), scratch);
        break;
      case KvType::i8:
        run_tile<Int8Page>(a, list[i], follower, static_cast<float*>(partial), scratch);
        break;
      default:
        run_tile<F32Page>(a, list[i], follower, static_cast<float*>(partial), scratch);
    }
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

}  // namespace LLMX_NS
}  // namespace llmx
