// How attention is cut into work items, and which ISA level runs them.
#include "attention.h"

#include "attention_plan.h"

namespace llmx {

extern const AttnKernels attn_kernels_portable, attn_kernels_avx2, attn_kernels_avx512, attn_kernels_neon;

const AttnKernels& attn_kernels(Isa isa) {
#if LLMX_X86
  if (isa == Isa::avx512) return attn_kernels_avx512;
  if (isa == Isa::avx2) return attn_kernels_avx2;
#elif LLMX_NEON
  if (isa == Isa::neon) return attn_kernels_neon;
#endif
  (void)isa;
  return attn_kernels_portable;
}

namespace {

constexpr int kItemsPerThread = 6;  // so that threads end together although items differ

struct Tile {
  int request;
  int64_t row, position, last_key;
  int tokens;
  int chunk_begin, chunk_end;
  int64_t cost(const AttnArgs& a) const {  // row tiles x chunks
    const int64_t rows = static_cast<int64_t>(tokens) * (a.q_heads / a.geo.kv_heads);
    return (chunk_end - chunk_begin) * ((rows + kRowsAtOnce - 1) / kRowsAtOnce);
  }
};

// Calls visit(tile) for each query tile; late tiles of a request, which see the most keys, come first.
template <class Visit>
void each_tile(const AttnArgs& a, Visit visit) {
  const int step = tokens_per_item(a);
  int64_t row = 0;
  for (int r = 0; r < a.n; row += a.q[r], ++r) {
    for (int tile = (a.q[r] + step - 1) / step - 1; tile >= 0; --tile) {
      const int first = tile * step;
      const int tokens = a.q[r] - first < step ? a.q[r] - first : step;
      const int64_t position = static_cast<int64_t>(a.start[r]) + first;
      const int chunk_begin = static_cast<int>(first_visible(position, a.window) / kChunkTokens);
      const int64_t last_key = a.bidirectional ? static_cast<int64_t>(a.start[r]) + a.q[r] - 1 : -1;
      const int chunk_end = static_cast<int>((last_key < 0 ? position + tokens - 1 : last_key) / kChunkTokens) + 1;
      visit(Tile{r, row + first, position, last_key, tokens, chunk_begin, chunk_end});
    }
  }
}

// Chunks per item of a tile: all of them, unless one tile would keep a thread busy while others have nothing left.
int chunks_per_item(const AttnArgs& a, const Tile& tile, int64_t limit) {
  const int chunks = tile.chunk_end - tile.chunk_begin;
  const int64_t cost = tile.cost(a);
  if (chunks < 2 || cost <= limit) return chunks;
  const int64_t take = limit * chunks / cost;
  return take < 1 ? 1 : static_cast<int>(take);
}

// The cost above which a tile is cut. One thread cuts nothing.
int64_t cost_limit(const AttnArgs& a, int threads) {
  if (threads < 2) return INT64_MAX;
  int64_t total = 0;
  each_tile(a, [&](const Tile& tile) { total += tile.cost(a) * a.geo.kv_heads; });
  const int64_t limit = total / (static_cast<int64_t>(threads) * kItemsPerThread);
  return limit < 1 ? 1 : limit;
}

}  // namespace

AttnPlan attn_plan(const AttnArgs& a, int threads) {
  AttnPlan plan;
  plan.limit = cost_limit(a, threads);
  int64_t partial_rows = 0;
  each_tile(a, [&](const Tile& tile) {
    const int chunks = tile.chunk_end - tile.chunk_begin, take = chunks_per_item(a, tile, plan.limit);
    plan.units += static_cast<int64_t>(chunks + take - 1) / take * a.geo.kv_heads;
    if (take == chunks) return;
    plan.merge_units += a.geo.kv_heads;
    partial_rows += static_cast<int64_t>(chunks) * tile.tokens * a.q_heads;
  });
  plan.partial_bytes = partial_rows * partial_floats(a) * 4;
  plan.thread_bytes = scratch_sizes(a).total * 4;
  plan.items_bytes = (plan.units + plan.merge_units) * static_cast<int64_t>(sizeof(AttnItem));
  return plan;
}

void attn_prepare(const AttnArgs& a, const AttnPlan& plan, void* items) {
  AttnItem* item = static_cast<AttnItem*>(items);
  AttnItem* merge = item + plan.units;
  const int group = a.q_heads / a.geo.kv_heads;
  int64_t partial = 0;
  each_tile(a, [&](const Tile& tile) {
    const int chunks = tile.chunk_end - tile.chunk_begin, take = chunks_per_item(a, tile, plan.limit);
    const int64_t rows = static_cast<int64_t>(tile.tokens) * group;
    for (int head = 0; head < a.geo.kv_heads; ++head) {
      const AttnItem whole = {tile.request, head, tile.row, tile.position, tile.last_key, tile.tokens, tile.chunk_begin, tile.chunk_end, 0, partial};
      if (take < chunks) {
        *merge++ = whole;
        partial += chunks * rows;
      }
      for (int chunk = tile.chunk_begin; chunk < tile.chunk_end; chunk += take) {
        *item = whole;
        item->chunk_begin = chunk;
        item->chunk_end = chunk + take < tile.chunk_end ? chunk + take : tile.chunk_end;
        item->partial = take < chunks ? whole.partial + (chunk - tile.chunk_begin) * rows : -1;
        ++item;
      }
    }
  });
}

}  // namespace llmx
