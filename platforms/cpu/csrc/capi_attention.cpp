// C entry points for tests and measurements of paged attention: one call writes K and V, attends, and merges, with the work
// items dealt to `workers` in turn (on the calling thread) so that any partition can be compared with any other.
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "attention.h"
#include "isa.h"

#define LLMX_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

struct TestAttention {  // llmx_cpu tests mirror this with ctypes
  int32_t isa, kv_type, kv_heads, head_dim, v_head_dim, q_heads, n, window;  // window -1: bidirectional
  int64_t block_bytes, layer_offset, stride;
  uint8_t* pages;
  const int32_t *table, *slot, *q, *start;
  const float *query, *k, *v, *sinks, *alibi;
  float* out;
  int64_t ld_query, ld_k, ld_v, ld_out;
  float scale, soft_cap;
  int32_t threads;  // that the plan is made for
  int32_t backwards;  // run the items from last to first
};

llmx::KvGeometry geometry(const TestAttention& t) {
  return {static_cast<llmx::KvType>(t.kv_type), t.kv_heads, t.head_dim, t.v_head_dim, t.block_bytes, t.layer_offset};
}

llmx::AttnArgs attention_args(const TestAttention& t) {
  const bool both = t.window < 0;
  return {geometry(t), t.pages, t.table, t.stride, t.n, t.slot, t.q, t.start, t.query, t.out, t.ld_query, t.ld_out, t.q_heads, t.scale, t.soft_cap, both ? 0 : t.window, both, t.sinks, t.alibi};
}

}  // namespace

LLMX_EXPORT int64_t llmx_test_kv_layer_bytes(int kv_type, int kv_heads, int head_dim, int v_head_dim) {
  return llmx::kv_layer_bytes({static_cast<llmx::KvType>(kv_type), kv_heads, head_dim, v_head_dim, 0, 0});
}

// Writes K and V of token rows [row_begin, row_end).
LLMX_EXPORT void llmx_test_kv_write(const TestAttention* t, int64_t row_begin, int64_t row_end) {
  const llmx::KvWriteArgs args = {geometry(*t), t->pages, t->table, t->stride, t->n, t->slot, t->q, t->start, t->k, t->v, t->ld_k, t->ld_v};
  llmx::attn_kernels(static_cast<llmx::Isa>(t->isa)).kv_write(args, row_begin, row_end);
}

// Returns the number of work items; merge_units gets the number of merges.
LLMX_EXPORT int64_t llmx_test_attention(const TestAttention* t, int64_t* merge_units) {
  const llmx::AttnKernels& kernels = llmx::attn_kernels(static_cast<llmx::Isa>(t->isa));
  const llmx::AttnArgs args = attention_args(*t);
  const llmx::AttnPlan plan = kernels.plan(args, t->threads);
  std::vector<uint64_t> items(plan.items_bytes / 8 + 1), scratch(plan.thread_bytes / 8 + 1), partials(plan.partial_bytes / 8 + 1);
  kernels.prepare(args, plan, items.data());
  for (int64_t i = 0; i < plan.units; ++i) {
    const int64_t unit = t->backwards ? plan.units - 1 - i : i;
    kernels.run(args, plan, items.data(), unit, unit + 1, partials.data(), scratch.data());
  }
  kernels.merge(args, plan, items.data(), 0, plan.merge_units, partials.data());
  *merge_units = plan.merge_units;
  return plan.units;
}

LLMX_EXPORT void llmx_test_kv_block(const TestAttention* t, int copy, int32_t src, int32_t dst) {
  if (copy)
    llmx::kv_copy_block(t->pages, geometry(*t), src, dst);
  else
    llmx::kv_zero_block(t->pages, geometry(*t), dst);
}
