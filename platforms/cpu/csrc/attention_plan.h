// Work items of paged attention and the sizes of their scratch: the same at every ISA level. (static: this header is also
// compiled with wide instructions, and the linker must not pick that copy for all.)
#pragma once
#include <cstdint>

#include "attention.h"

namespace llmx {

constexpr int kMaxHeadDim = 1024;  // head_dim and v_head_dim; checked where a model is lowered
constexpr int kRowsPerItem = 48;   // query rows (tokens x heads of one kv head) that one item walks the keys with
constexpr int kRowsAtOnce = 12;    // at most, at any level

struct AttnItem {
  int32_t request, kv_head;
  int64_t row;       // first token row in [0, T)
  int64_t position;  // of that row
  int64_t last_key;  // what all rows see up to; -1: each row up to its own position
  int32_t tokens;
  int32_t chunk_begin, chunk_end;
  int32_t pad;
  int64_t partial;   // first row of partials; -1: keep the state and write the result
};

struct ScratchSizes {  // in floats
  int64_t q, acc, rows, total;
};

static inline int64_t first_visible(int64_t position, int window) { return window > 0 && position >= window ? position - window + 1 : 0; }
static inline int padded_columns(int v_dim) { return (v_dim + 15) / 16 * 16; }
static inline int64_t partial_floats(const AttnArgs& a) { return 16 + padded_columns(a.geo.v_head_dim); }  // maximum, sum, seen; accumulators

static inline int tokens_per_item(const AttnArgs& a) {
  const int group = a.q_heads / a.geo.kv_heads;
  return group >= kRowsPerItem ? 1 : kRowsPerItem / group;
}

static inline ScratchSizes scratch_sizes(const AttnArgs& a) {
  const int64_t rows = static_cast<int64_t>(tokens_per_item(a)) * (a.q_heads / a.geo.kv_heads);
  const int64_t padded_rows = (rows + 15) / 16 * 16;
  const int64_t q = (rows + 1) * ((a.geo.head_dim + 31) / 32 * 32), acc = rows * padded_columns(a.geo.v_head_dim);
  return {q, acc, padded_rows, q + acc + 3 * padded_rows + kRowsAtOnce * kChunkTokens};
}

AttnPlan attn_plan(const AttnArgs& args, int threads);
void attn_prepare(const AttnArgs& args, const AttnPlan& plan, void* items);

}  // namespace llmx
