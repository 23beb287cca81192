// Paged attention and the KV pages it reads. Layout of one block (16 tokens) of one layer, per kv head:
//   bf16: K [D / 2][16][2], V [8][Dv][2] (pairs of elements lie together for the bf16 dot product)
//   f32:  K [D][16],        V [16][Dv]
//   int8: as bf16 with codes of one byte, after K and after V sixteen f32 scales, one per token (attention_int8_impl.h)
// K of all heads, then V of all heads; all layers of a group follow each other inside a block. Block 0 is the null page.
//
// Invariance: an output element depends on its own query row, its pages and absolute positions only. Keys are walked in
// absolute chunks of 256 tokens, each with its own maximum; partials are merged in ascending order by one function; masked
// and null keys are exact no-ops. So decode, chunked prefill and whole prefill give the same bits.
#pragma once
#include <cstdint>

#include "isa.h"

namespace llmx {

constexpr int kBlockTokens = 16;
constexpr int kChunkTokens = 256;

enum class KvType : int { f32 = 0, bf16 = 1, i8 = 2 };
constexpr int kKvTypes = 3;

struct KvGeometry {
  KvType type;
  int kv_heads, head_dim, v_head_dim;
  int64_t block_bytes;   // bytes of one block, all layers of the group
  int64_t layer_offset;  // where this layer begins inside a block
};

int64_t kv_layer_bytes(const KvGeometry& geo);  // bytes of one layer inside one block

struct KvWriteArgs {
  KvGeometry geo;
  uint8_t* pages;
  const int32_t* table;  // block table rows of the group [slots, stride]
  int64_t stride;
  int n;                 // requests
  const int32_t *slot, *q, *start;
  const float* k;        // [T, ld_k], K heads of head_dim
  const float* v;        // [T, ld_v], K heads of v_head_dim
  int64_t ld_k, ld_v;
};

struct AttnArgs {
  KvGeometry geo;
  const uint8_t* pages;
  const int32_t* table;
  int64_t stride;
  int n;
  const int32_t *slot, *q, *start;  // query row i of request r stands at position start[r] + i and sees keys <= itself
  const float* query;               // [T, ld_query], H heads of head_dim
  float* out;                       // [T, ld_out], H heads of v_head_dim
  int64_t ld_query, ld_out;
  int q_heads;
  float scale;
  float soft_cap;      // 0: off
  int window;          // 0: off; key j is seen when i - j < window
  bool bidirectional;  // every row sees all start[r] + q[r] keys of its request; not with window or alibi
  const float* sinks;  // [H] or null
  const float* alibi;  // [H] slopes or null
};

// Work is cut into units; any partition of [0, units) over threads gives the same bits. Phase 2 (merge of partials of long
// contexts) runs after all of phase 1; merge_units may be 0.
struct AttnPlan {
  int64_t units = 0, merge_units = 0;
  int64_t partial_bytes = 0;   // shared scratch that the caller provides for partials
  int64_t thread_bytes = 0;    // scratch per thread
  int64_t items_bytes = 0;     // room for the unit list, provided by the caller
  int64_t limit = 0;           // tiles that cost more are cut by chunks
};

struct AttnKernels {
  void (*kv_write)(const KvWriteArgs&, int64_t row_begin, int64_t row_end);  // token rows [0, T)
  AttnPlan (*plan)(const AttnArgs&, int threads);                           // sizes only
  void (*prepare)(const AttnArgs&, const AttnPlan&, void* items);           // fills the unit list, on one thread
  void (*run)(const AttnArgs&, const AttnPlan&, const void* items, int64_t begin, int64_t end, void* partial, void* thread_scratch);
  void (*merge)(const AttnArgs&, const AttnPlan&, const void* items, int64_t begin, int64_t end, const void* partial);
  const char* name;
};

const AttnKernels& attn_kernels(Isa isa);

// A block of all layers of the group.
void kv_zero_block(uint8_t* pages, const KvGeometry& geo, int32_t block);
void kv_copy_block(uint8_t* pages, const KvGeometry& geo, int32_t src, int32_t dst);

}  // namespace llmx
